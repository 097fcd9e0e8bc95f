"""Plans that place groups of heads apart: every picture and table tells the groups apart."""

import csv
import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dcp_dashboard.api.encoding import decode
from dcp_dashboard.api.mask import MOVED, find_moves, mask_payload, moves_payload
from dcp_dashboard.editing.planning import figures
from dcp_dashboard.exports.files import devices_csv
from dcp_dashboard.exports.overview import standalone_page
from dcp_dashboard.exports.pictures import pair_shares, tile_of_pixel
from dcp_dashboard.facts.comparison import has_same_blocks
from dcp_dashboard.facts.devices import division_facts
from dcp_dashboard.facts.text import transfer_selection
from dcp_dashboard.facts.tiles import serving_transfers, transfer_facts
from dcp_dashboard.library.summary import caption_of_first_group, group_labels
from dcp_planner import TransferKind


@pytest.fixture
def grouped(shown):
    return shown["grouped"]


def test_the_mask_says_which_group_every_tile_is_of(grouped_plan, small_plan):
    header, columns = decode(mask_payload(grouped_plan))
    assert header["group_labels"] == ["1-2", "3-4"]
    assert columns["tile_group"].tolist() == grouped_plan.tiles.group.tolist()
    assert len(columns["tile_q"]) == 2 * len(small_plan.tiles)
    header, columns = decode(mask_payload(small_plan))
    assert "group_labels" not in header
    assert "tile_group" not in columns


def test_messages_that_serve_a_tile_are_those_of_its_group():
    """Four groups of heads on device 1, of which two each read the same keys."""
    four, kinds = np.zeros(4, np.int32), TransferKind
    tiles = SimpleNamespace(q_block=four, kv_block=four + 1, device=four + 1, group=np.arange(4))
    kind = np.array([kinds.Q] * 4 + [kinds.KV] * 2 + [kinds.OUT] * 4 + [kinds.Q] * 2)
    back, block = kind == kinds.OUT, np.where(kind == kinds.KV, 1, 0)
    table = SimpleNamespace(
        kind=kind, block=block, group=np.array([0, 1, 2, 3, 0, 2, 0, 1, 2, 3, 0, 0]),
        source=np.where(back, 1, 3), target=np.where(back, 3, 1),
    )  # fmt: skip
    block[-1], table.target[-2] = 2, 2  # another block, and another device
    shape = SimpleNamespace(kv_heads=2)
    plan = SimpleNamespace(tiles=tiles, transfers=table, shape=shape, head_groups=4)
    served = [serving_transfers(plan, tile).tolist() for tile in range(4)]
    assert served == [[0, 4, 6], [1, 4, 7], [2, 5, 8], [3, 5, 9]]


def test_the_first_group_is_named_where_there_are_more(grouped_plan, small_plan):
    assert group_labels(small_plan) == ["1-4"]
    assert caption_of_first_group(small_plan) == ""
    assert caption_of_first_group(grouped_plan) == "heads 1-2 of 4, the first of 2 groups"
    shown = np.unique(tile_of_pixel(grouped_plan, 256))
    assert set(grouped_plan.tiles.group[shown[shown >= 0]].tolist()) == {0}


def test_the_pairs_of_all_devices_are_those_of_the_mask(grouped, small_plan):
    lengths = (1000, 560, 488)
    visible = sum(n * (n + 1) // 2 for n in lengths)
    tiles = grouped.plan.tiles
    of_device = [0.0] * 4
    for tile in range(len(tiles)):  # each of the two groups computes half of the heads of a pair
        of_device[tiles.device[tile]] += tiles.pairs[tile] / 2
    assert grouped.totals.pairs.tolist() == of_device
    assert sum(of_device) == grouped.summary.metrics.pairs == visible
    preview = figures(grouped.plan, grouped.summary.metrics, 1.0)
    assert preview["device_pairs"] == of_device
    lines = csv.DictReader(io.StringIO(devices_csv(grouped).decode()))
    assert [int(line["pairs"]) for line in lines] == [round(pairs) for pairs in of_device]
    divisions = range(int(tiles.division.max()) + 1)
    parts = [division_facts(grouped, division, "forward").values["pairs"] for division in divisions]
    assert sum(parts) == pytest.approx(visible, abs=len(parts))
    assert "counts 1/2 in each" in standalone_page(grouped)


def test_thumbnails_do_not_count_pairs_once_per_group(grouped_plan, small_plan):
    np.testing.assert_allclose(pair_shares(grouped_plan), pair_shares(small_plan))


def test_messages_of_groups_are_found_in_traces_and_name_their_heads(grouped):
    plan, trace = grouped.plan, grouped.traces["simulated"]
    table = plan.transfers
    chosen = np.flatnonzero(table.group == 1)[::7]
    assert len(chosen) > 3
    for transfer in chosen.tolist():
        ends = np.flatnonzero(trace.transfer == transfer)
        kind = TransferKind(table.kind[transfer]).name.lower()
        assert {trace.name_of(event) for event in ends} == {f"{kind} {table.block[transfer]}.1"}
        named = sorted((table.source[transfer], table.target[transfer]))
        assert sorted(trace.device[ends]) == named
        assert transfer_selection(plan, transfer).endswith("~group.1")
    facts = str(transfer_facts(grouped, int(chosen[0])).to_json())
    assert "query heads 3-4: group 2 of 2" in facts


def test_moved_tiles_are_compared_group_by_group(grouped_plan, small_plan):
    grouped, plain = grouped_plan.tiles, small_plan.tiles
    place = dict(zip(zip(plain.q_block, plain.kv_block, strict=True), plain.device, strict=True))
    expected = [
        device != place[q, kv]
        for q, kv, device in zip(grouped.q_block, grouped.kv_block, grouped.device, strict=True)
    ]
    moves = find_moves(grouped_plan, small_plan)
    assert moves.first.tolist() == list(range(len(grouped)))
    assert (moves.change == MOVED).tolist() == expected
    assert moves.group.tolist() == grouped.group.tolist()
    assert find_moves(grouped_plan, grouped_plan).share == 0
    header, columns = decode(moves_payload(small_plan, grouped_plan))
    assert header["group_labels"] == ["1-2", "3-4"]
    assert columns["tile_group"].tolist() == grouped.group.tolist()
    assert columns["tile_b"].tolist() == grouped.device.tolist()


def test_groups_of_other_models_are_other_blocks(grouped_plan, small_plan):
    larger = replace(grouped_plan, shape=replace(grouped_plan.shape, q_heads=8))
    assert has_same_blocks(grouped_plan, grouped_plan)
    assert not has_same_blocks(grouped_plan, larger)
    alone = replace(small_plan, shape=replace(small_plan.shape, q_heads=8))
    assert has_same_blocks(small_plan, alone)
