"""Thumbnails, colours and the order of the list of plans."""

import struct
import zlib

import numpy as np
import pytest

from dcp_dashboard.api.encoding import KIND_COLOURS, device_colours, ramp
from dcp_dashboard.exports.pictures import SIDE, thumbnail
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.plan_list import COLUMNS, sort_rows
from dcp_dashboard.pages.tables import Query


def test_rows_sort_by_every_column_with_the_unreadable_last(served_folder):
    rows = PlanLibrary(served_folder).index.rows()
    for column in COLUMNS:
        for desc in (False, True):
            ordered = sort_rows(rows, Query(sort=column.name, desc=desc))
            values = [column.value(row.value) if row.value else None for row in ordered]
            known = [value for value in values if value is not None]
            assert known == sorted(known, reverse=desc)
            assert values == known + [None] * (len(values) - len(known))
            assert column.name != "tokens" or ordered[-1].entry.relative == "cut.dcpplan"
    ordered = sort_rows(rows, Query(sort="nonsense"))
    assert ordered[0].entry.relative == "deep/large.dcpplan"


def alpha_of(png):
    """Decode the opacity of a palette PNG by its chunks."""
    at, body, opacity = 8, b"", b""
    while at < len(png):
        (size,), kind = struct.unpack_from(">I", png, at), png[at + 4 : at + 8]
        data = png[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", png, at + 8 + size)[0] == zlib.crc32(kind + data)
        body += data if kind == b"IDAT" else b""
        opacity = data if kind == b"tRNS" else opacity
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(SIDE, SIDE + 1)
    assert not rows[:, 0].any()
    return np.frombuffer(opacity, np.uint8)[rows[:, 1:]]


def test_thumbnails_show_the_mask(large_plan):
    alpha = alpha_of(thumbnail(large_plan))
    below, above = np.tril_indices(SIDE, -1), np.triu_indices(SIDE, 1)
    assert (alpha[below] == 255).all()
    assert (alpha[above] == 0).all()
    assert ((alpha.diagonal() > 110) & (alpha.diagonal() < 255)).all()


def test_thumbnails_show_where_sequences_end(small_plan):
    alpha = alpha_of(thumbnail(small_plan))
    scale = SIDE / 2048
    assert alpha[int(600 * scale), int(100 * scale)] == 255
    assert alpha[int(1400 * scale), int(500 * scale)] == 0


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 32])
def test_ramps_rise_in_luminance(count):
    values = [luminance(colour) for colour in ramp(count)]
    assert values == sorted(values)
    assert len(set(ramp(count))) == count


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 8), (2, 2), (4, 8), (8, 8)])
def test_every_device_has_a_colour_of_its_own(nodes, per_node):
    assert len(set(device_colours(nodes, per_node))) == nodes * per_node


def lab(colour):
    """CIE L*a*b* of a colour; its formulas share nothing with OKLCH."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    rows = ((0.4125, 0.3576, 0.1804), (0.2127, 0.7152, 0.0722), (0.0193, 0.1192, 0.9503))
    xyz = np.array(rows) @ linear / (0.9505, 1, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 8), (4, 4), (4, 8)])
def test_32_devices_can_be_told_apart(nodes, per_node):
    points = np.array([lab(colour) for colour in device_colours(nodes, per_node)])
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    np.fill_diagonal(apart, np.inf)
    assert apart.min() > 15  # 2 can just be seen beside each other


def test_kinds_stand_out_from_both_backgrounds():
    for colour in KIND_COLOURS.values():
        for background in ("#f3f4f7", "#1e2329"):
            light, dark = sorted((luminance(colour), luminance(background)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 1.9
