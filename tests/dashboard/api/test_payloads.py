"""Payloads that canvases draw: columns on the wire, their values, and the answers of addresses."""

import json
import re
import struct
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from shown_texts import columns_text, json_text

import dcp_dashboard
from dcp_dashboard.api import devices as api_devices
from dcp_dashboard.api.devices import (
    devices_payload,
    memory_payload,
    path_payload,
    time_unit_ns,
    timeline_payload,
)
from dcp_dashboard.api.encoding import (
    KIND_COLOURS,
    NEUTRAL,
    decode,
    device_colours,
    encode,
    narrow,
    oklch,
    ramp,
    tints,
)
from dcp_dashboard.api.mask import (
    FETCHES,
    find_moves,
    fit_devices,
    mask_modes,
    mask_payload,
    moves_payload,
    pairs_payload,
    read_window,
)
from dcp_dashboard.exports.overview import THEMES
from dcp_dashboard.facts.traces import length_ns
from dcp_dashboard.library.folder import plan_key
from dcp_dsl import DCPError
from dcp_planner.simulation.trace import COLUMNS as TRACE_COLUMNS

COLUMNS = {
    "bytes": np.arange(5, dtype=np.uint8),
    "shorts": np.array([1, 65535], np.uint16),
    "signed": np.array([-1, 2, 3], np.int32),
    "sizes": np.array([2.0**40]),
    "none": np.array([], np.uint32),
}


def test_columns_come_back_as_they_were():
    header, columns = decode(encode("x/1", {"names": ["ä", "b"]}, COLUMNS))
    assert header["names"] == ["ä", "b"]
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: column.tolist() for name, column in COLUMNS.items()
    }


@pytest.mark.parametrize("text", ["", "a", "ab", "abc", "abcdefg"])
def test_layout_is_as_documented_whatever_the_length_of_the_header(text):
    payload = encode("x/1", {"text": text}, COLUMNS)
    (size,) = struct.unpack_from("<I", payload, 4)
    assert payload[:4] == b"DCPC"
    assert (8 + size) % 8 == 0
    for column in json.loads(payload[8 : 8 + size])["columns"]:
        assert column["offset"] % 8 == 0
    assert payload[8 + size : 8 + size + 5] == bytes(range(5))


def test_element_types_that_a_browser_lacks_are_refused():
    with pytest.raises(ValueError, match=r"column 'a': expected one of .*, got i8"):
        encode("x/1", {}, {"a": np.array([1], np.int64)})


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([0, 255], "u1"), ([256], "u2"), ([65535], "u2"), ([65536], "u4"), ([2**32 - 1], "u4"),
        ([2**32], "f8"), ([-(2**15), 2**15 - 1], "i2"), ([-(2**15) - 1], "i4"), ([-1, 2**15], "i4"),
        ([], "u1"),
    ],
)  # fmt: skip
def test_narrow_keeps_every_value(values, dtype):
    column = narrow(np.array(values, np.int64))
    assert (column.dtype.str[1:], column.tolist()) == (dtype, values)


def test_timeline_rows_are_the_events_of_the_trace(small_trace, small_plan):
    header, columns = decode(timeline_payload(small_trace, small_plan))
    names = ("device", "lane", "start", "end", "backward", "division", "peer", "bytes")
    sent = list(zip(*(columns[name].tolist() for name in names), strict=True))
    t = small_trace
    events = zip(
        t.device.tolist(), t.lane.tolist(), t.start_ns.tolist(), t.end_ns.tolist(),
        t.is_backward.tolist(), t.division.tolist(), t.peer.tolist(), t.size_bytes.tolist(),
        map(t.name_of, range(len(t))), strict=True,
    )  # fmt: skip
    assert header["unit_ns"] == 1
    shown = [header["names"][name] for name in columns["name"]]
    assert sorted((*row, name) for row, name in zip(sent, shown, strict=True)) == sorted(events)
    tracks = [row[:3] for row in sent]  # device, lane, start: a track is one run
    assert tracks == sorted(tracks)


def test_a_message_carries_its_transfer_and_block(small_trace, small_plan):
    header, columns = decode(timeline_payload(small_trace, small_plan))
    is_message = np.isin(columns["kind"], [header["kinds"].index(k) for k in ("send", "receive")])
    transfer = columns["transfer"][is_message]
    assert (transfer >= 0).all()
    assert (columns["block"][is_message] == small_plan.transfers.block[transfer]).all()
    assert (columns["transfer"][~is_message] == -1).all()
    assert (columns["block"][~is_message] == -1).all()


def test_mask_rows_are_the_tiles_and_blocks_of_the_plan(small_plan):
    header, columns = decode(mask_payload(small_plan))
    assert header["num_tokens"] == 2048
    assert header["cu_seqlens"] == [0, 1000, 1560, 2048]
    assert columns["block_owner"].tolist() == small_plan.blocks.owner.tolist()
    assert columns["block_sequence"].tolist() == small_plan.blocks.sequence.tolist()
    assert columns["block_end"].tolist() == small_plan.blocks.end.tolist()
    for name in ("kind", "pairs", "device", "division", "backward_division"):
        assert columns[f"tile_{name}"].tolist() == getattr(small_plan.tiles, name).tolist()


def test_every_mode_has_a_colour_for_every_tile(small_plan):
    header, columns = decode(mask_payload(small_plan))
    assert [mode["id"] for mode in header["modes"]] == ["device", "division", "fetch", "density"]
    for mode in header["modes"]:
        assert int(columns[mode["column"]].max()) < len(mode["palette"])
        shown = [colour for entry in mode["legend"] for colour in entry["colours"]]
        assert shown == mode["palette"]


def test_fetches_are_what_the_tile_lacks_at_its_device(small_plan):
    _, columns = decode(mask_payload(small_plan))
    owner, tiles = small_plan.blocks.owner, small_plan.tiles
    expected = []
    for tile in range(len(tiles)):
        lacks_kv = owner[tiles.kv_block[tile]] != tiles.device[tile]
        lacks_q = owner[tiles.q_block[tile]] != tiles.device[tile]
        word = {(0, 0): "nothing", (1, 0): "keys and values", (0, 1): "queries", (1, 1): "both"}
        expected.append(word[int(lacks_kv), int(lacks_q)])
    assert [FETCHES[code] for code in columns["tile_fetch"]] == expected
    assert {"nothing", "keys and values"} <= set(expected)


def test_density_is_the_visible_share_in_sixteen_steps(small_plan):
    _, columns = decode(mask_payload(small_plan))
    tiles, tokens = small_plan.tiles, small_plan.blocks.num_tokens.tolist()
    places = zip(tiles.q_block.tolist(), tiles.kv_block.tolist(), strict=True)
    areas = [tokens[q] * tokens[kv] for q, kv in places]
    wanted = [15 * p // area for p, area in zip(tiles.pairs.tolist(), areas, strict=True)]
    assert columns["tile_density"].tolist() == wanted
    assert set(wanted) == {7, 15}


def test_colours_are_those_that_css_gives_for_the_same_numbers():
    # The primaries of sRGB in OKLCH, as CSS Color 4 has them.
    primaries = (
        (0.62796, 0.25768, 29.234),
        (0.86644, 0.29483, 142.495),
        (0.45201, 0.31321, 264.05),
    )
    assert [oklch(*place) for place in primaries] == ["#ff0000", "#00ff00", "#0000ff"]


TOKENS = (Path(dcp_dashboard.__file__).parent / "assets" / "tokens.css").read_text()


def tokens(selector):
    block = TOKENS[TOKENS.index(selector + " {") :].partition("}")[0]
    return dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6});", block))


def test_kinds_and_themes_have_the_colours_of_the_tokens():
    light = tokens(":root")
    dark = light | tokens(':root[data-mantine-color-scheme="dark"]')
    assert {kind: light[kind] for kind in KIND_COLOURS} == KIND_COLOURS
    assert light["neutral"] == NEUTRAL
    for theme, colours in (("light", light), ("dark", dark)):
        names = ("panel", "canvas", "ink", "muted", "line")
        assert {name: getattr(THEMES[theme], name) for name in names} == {
            name: colours[name] for name in names
        }


SMALL = plan_key("small.dcpplan")


def test_an_unchanged_payload_is_not_sent_twice(client):
    first = client.get(f"/api/plan/{SMALL}/mask")
    again = client.get(f"/api/plan/{SMALL}/mask", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    other = client.get(
        f"/api/plan/{SMALL}/timeline", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert other.status_code == 200


def test_masks(shown, large_plan, snapshots):
    texts = {name: columns_text(mask_payload(loaded.plan)) for name, loaded in shown.items()}
    texts["small, a window"] = columns_text(
        pairs_payload(shown["small"].plan, (990, 1013, 992, 1009))
    )
    texts["unequal, a window"] = columns_text(pairs_payload(shown["unequal"].plan, (0, 9, 1, 4)))
    texts["large, colours"] = "\n".join(json_text(mode) for mode in mask_modes(large_plan))
    snapshots.check("masks", texts)


def test_traces(shown, snapshots):
    texts = {}
    for name, loaded in shown.items():
        longest = max(map(length_ns, loaded.traces.values()))
        texts[f"{name}, devices"] = columns_text(devices_payload(loaded))
        for source, trace in loaded.traces.items():
            title, plan = f"{name}, {source}", loaded.plan
            texts[f"{title}, timeline"] = columns_text(timeline_payload(trace, plan, longest))
            texts[f"{title}, memory"] = columns_text(memory_payload(trace, plan))
            texts[f"{title}, path"] = columns_text(path_payload(loaded, source))
    trace, plan = shown["small"].traces["simulated"], shown["small"].plan
    for factor in (40_000, 400_000):
        times = {name: getattr(trace, name) * factor for name in ("start_ns", "end_ns", "ready_ns")}
        slow = replace(trace, **times)
        for name, payload in (("timeline", timeline_payload), ("memory", memory_payload)):
            text = columns_text(payload(slow, plan, 10**12))
            texts[f"{factor} times as slow, {name}"] = text
    snapshots.check("traces", texts)


def test_memory_of_traces_that_lack_events(shown, snapshots):
    """Of a run that lost events, only what is known is told."""
    loaded = shown["unequal"]
    whole = loaded.traces["measured"]
    texts = {}
    for kind in range(6):
        kept = np.ones(len(whole), bool)
        kept[np.flatnonzero(whole.kind == kind)[1:2]] = False  # the second event of a kind
        names = [*TRACE_COLUMNS, "name"]
        trace = replace(whole, **{name: getattr(whole, name)[kept] for name in names})
        texts[f"without an event of kind {kind}"] = columns_text(memory_payload(trace, loaded.plan))
    snapshots.check("memory", texts)


def test_units_of_time_hold_the_last_moment():
    most = 2**32 - 1
    spans = [0, most - 1, most, 10 * most - 1, 10 * most, 100 * most]
    assert [time_unit_ns(span) for span in spans] == [1, 1, 10, 10, 100, 1000]


def test_so_many_events_are_sent(shown, monkeypatch):
    trace, plan = shown["lone"].traces["simulated"], shown["lone"].plan
    monkeypatch.setattr(api_devices, "MAX_EVENTS", len(trace))
    assert timeline_payload(trace, plan)
    monkeypatch.setattr(api_devices, "MAX_EVENTS", len(trace) - 1)
    most = f"expected at most {len(trace) - 1} events .* ui.perfetto.dev"
    with pytest.raises(DCPError, match=most):
        timeline_payload(trace, plan)


def test_moved_tiles(shown, small_choices, snapshots):
    small, grouped = shown["small"].plan, shown["grouped"].plan
    texts = {}
    for title, (first, second) in {
        "other placement": (small, small_choices[1]),
        "groups": (grouped, small),
        "fewer tiles": (fewer(small, 9), small),
        "other tiles": (fewer(small, 7), fewer(small, 3)),
        "empty": (shown["empty"].plan, shown["empty"].plan),
    }.items():
        texts[title] = columns_text(moves_payload(first, second))
        moves = find_moves(first, second)
        shares = (moves.share, moves.pair_share, moves.fitted_pair_share, moves.moved_tokens)
        texts[title] += "\nshares " + " ".join(f"{share:.4g}" for share in shares)
    snapshots.check("moves", texts)


def fewer(plan, step):
    """A plan that lacks every so manieth tile, as of another mask over the same blocks."""
    kept = np.arange(len(plan.tiles)) % step > 0
    columns = {field.name: getattr(plan.tiles, field.name) for field in fields(plan.tiles)}
    known = {name: column[kept] for name, column in columns.items() if column is not None}
    return replace(plan, tiles=replace(plan.tiles, **known))


def test_devices_are_renumbered_greedily():
    first, second = np.array([0, 0, 1, 2, 2, 1]), np.array([2, 2, 0, 0, 1, 1])
    weight = np.array([4, 3, 6, 5, 1, 2])
    # Pairs of devices by weight: (0, 2) 7, (1, 0) 6, (2, 0) 5: taken, (1, 1) 2: taken, (2, 1) 1.
    assert fit_devices(first, second, weight, 3).tolist() == [1, 2, 0]
    nothing = np.array([], int)
    assert fit_devices(nothing, nothing, nothing, 2).tolist() == [0, 1]


WINDOWS = (
    "0-1-0-1", "0-8-7-8", "0-9-0-8", "0-8-0-9", "3-3-0-1", "0-1-3-3", "4-3-0-1", "0-1-0",
    "0-1-0-1-2", "a-1-0-1", "\u0663-4-0-1", "0-1-0-" + "9" * 13, "",
)  # fmt: skip


LARGE = ("0-4096-0-4096", "0-4097-0-4096")


def test_windows(snapshots):
    lines = []
    for text, size in [*((text, 8) for text in WINDOWS), *((text, 10**6) for text in LARGE)]:
        try:
            lines.append(f"{text}: {read_window(text, size)}")
        except DCPError as error:
            lines.append(f"{text}: {error}")
    snapshots.check("windows", {"read": "\n".join(lines)})


def test_colours(snapshots):
    lines = [f"ramp of {n}: {' '.join(ramp(n))}" for n in (1, 2, 5)]
    lines += [f"tints of {n}: {' '.join(tints(n))}" for n in (1, 2, 4)]
    for nodes, each in ((1, 1), (1, 3), (2, 1), (3, 2), (2, 4)):
        lines.append(f"{nodes} x {each}: {' '.join(device_colours(nodes, each))}")
    snapshots.check("colours", {"of devices and amounts": "\n".join(lines)})


ADDRESSES = (
    "mask", "devices", "pairs?tokens=0-8-0-8", "memory", "memory?source=measured",
    "memory?source=x", "timeline", "timeline?source=measured&phase=backward",
    "timeline?phase=forward", "timeline?phase=x", "path?source=measured", "tile/3", "transfer/3",
    "device/1", "sequence/1",
    "sequence?name=row+12", "sequence?name=x", "device/0/2", "division/forward/1?device=0",
    "division/backward/2?device=", "division/forward/0?device=0000000001", "division/up/1",
    "division/forward/1?device=" + "1" * 12, "event/simulated/4", "event/x/4", "device/x",
    "tile/-1", "tile/99999", "device/0/9", "pairs", "pairs?tokens=0-4-0",
)  # fmt: skip


def test_answers(client, snapshots):
    lines = []
    for address in ADDRESSES:
        answer = client.get(f"/api/plan/{plan_key('small.dcpplan')}/{address}")
        kind, said = answer.mimetype, ""
        if kind == "application/octet-stream":
            said = columns_text(answer.data).splitlines()[:3]
        elif answer.is_json:
            found = answer.json
            said = found.get("title") or found.get("error")
        cache = answer.headers.get("Cache-Control", "")
        etag = "ETag" in answer.headers
        lines.append(f"{address}: {answer.status_code} {kind} {cache} {etag} {said}")
    same, other, coarse = (
        client.get(f"/api/compare/{plan_key('small.dcpplan')}/{plan_key(name)}/moves")
        for name in ("small.dcpplan", "deep/large.dcpplan", "cut.dcpplan")
    )
    lines += [f"{answer.status_code} {answer.mimetype}" for answer in (same, other, coarse)]
    lines += [other.json["error"], columns_text(same.data).splitlines()[0]]
    snapshots.check("answers", {"small.dcpplan": "\n".join(lines)})
