import numpy as np

from dcp_dashboard.api.devices import timeline_payload
from dcp_dashboard.api.encoding import decode, oklch
from dcp_dashboard.api.mask import FETCHES, mask_payload


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
