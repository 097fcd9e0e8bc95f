import dataclasses

import numpy as np
import pytest

from dcp_dashboard.api.columns import decode
from dcp_dashboard.api.devices import timeline_payload
from dcp_dashboard.api.mask import FETCHES, mask_payload
from dcp_dashboard.api.palette import KIND_COLOURS
from dcp_planner import LANES, Trace


def test_timeline_rows_are_the_events_of_the_trace(small_trace):
    header, columns = decode(timeline_payload(small_trace, 4, 2))
    sent = {
        (
            int(columns["start"][i]) * header["unit_ns"] + header["base_ns"],
            int(columns["end"][i]) * header["unit_ns"] + header["base_ns"],
            int(columns["device"][i]),
            LANES[columns["lane"][i]],
            bool(columns["backward"][i]),
            int(columns["division"][i]),
            int(columns["peer"][i]),
            int(columns["bytes"][i]),
            header["names"][columns["name"][i]],
        )
        for i in range(len(columns["start"]))
    }
    t = small_trace
    events = {
        (
            int(t.start_ns[i]), int(t.end_ns[i]), int(t.device[i]), LANES[t.lane[i]],
            bool(t.is_backward[i]), int(t.division[i]), int(t.peer[i]), int(t.size_bytes[i]),
            t.name[i],
        )
        for i in range(len(t))
    }  # fmt: skip
    assert header["unit_ns"] == 1
    assert len(columns["start"]) == len(t)
    assert sent == events


def test_timeline_rows_are_sorted_so_that_a_track_is_one_run(small_trace):
    shuffled = np.random.default_rng(0).permutation(len(small_trace))
    changes = {
        f.name: getattr(small_trace, f.name)[shuffled]
        for f in dataclasses.fields(small_trace)
        if f.name not in ("source", "name")
    }
    names = tuple(small_trace.name[i] for i in shuffled)
    _, columns = decode(
        timeline_payload(dataclasses.replace(small_trace, **changes, name=names), 4, 2)
    )
    keys = list(zip(columns["device"], columns["lane"], columns["start"], strict=True))
    assert keys == sorted(keys)


def test_a_trace_longer_than_four_seconds_keeps_its_length(small_trace):
    factor = 10**10 // int(small_trace.end_ns.max())
    slow = dataclasses.replace(
        small_trace, start_ns=small_trace.start_ns * factor, end_ns=small_trace.end_ns * factor
    )
    header, columns = decode(timeline_payload(slow, 4, 2))
    assert header["unit_ns"] == 10
    assert int(columns["end"].max()) * 10 == pytest.approx(slow.end_ns.max(), abs=10)


def test_colours_come_in_the_order_of_the_kinds(small_trace):
    header, _ = decode(timeline_payload(small_trace, 4, 2))
    assert header["colours"] == [KIND_COLOURS[kind] for kind in header["kinds"]]


@pytest.mark.parametrize(
    ("lane", "name", "kind"),
    [
        ("compute", "attention", "attention"),
        ("compute", "something new", "attention"),
        ("compute", "reduction 3", "reduction"),
        ("compute", "copy", "copy"),
        ("send", "copy", "send"),
        ("receive", "kv 12", "receive"),
        ("wait", "wait", "wait"),
    ],
)
def test_an_event_has_the_kind_that_its_lane_or_name_says(lane, name, kind):
    one = Trace("measured", [0], [5], [0], [LANES.index(lane)], [False], [0], [-1], [0], (name,))
    header, columns = decode(timeline_payload(one, 1, 1))
    assert header["kinds"][columns["kind"][0]] == kind


def test_an_empty_trace_is_an_empty_payload(small_trace):
    nothing = {
        f.name: getattr(small_trace, f.name)[:0]
        for f in dataclasses.fields(small_trace)
        if f.name != "source"
    }
    header, columns = decode(timeline_payload(dataclasses.replace(small_trace, **nothing), 4, 2))
    assert len(columns["start"]) == 0
    assert header["num_devices"] == 4


def test_mask_rows_are_the_tiles_and_blocks_of_the_plan(small_plan):
    header, columns = decode(mask_payload(small_plan))
    assert header["num_tokens"] == 2048
    assert header["cu_seqlens"] == [0, 1000, 1560, 2048]
    assert columns["block_owner"].tolist() == small_plan.blocks.owner.tolist()
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


def test_density_is_highest_for_full_tiles_only(small_plan):
    _, columns = decode(mask_payload(small_plan))
    is_full = small_plan.tiles.kind == 2
    assert set(columns["tile_density"][is_full]) == {15}
    assert columns["tile_density"][~is_full].max() < 15
