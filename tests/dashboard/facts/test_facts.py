"""Facts about one selected thing, of plans with and without groups of heads, row by row."""

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from dcp_dashboard.api.encoding import decode
from dcp_dashboard.api.mask import MOVED, find_moves, mask_payload, moves_payload
from dcp_dashboard.editing.planning import figures
from dcp_dashboard.exports.files import devices_csv
from dcp_dashboard.exports.overview import standalone_page
from dcp_dashboard.exports.pictures import pair_shares, tile_of_pixel
from dcp_dashboard.facts import devices
from dcp_dashboard.facts.comparison import has_same_blocks
from dcp_dashboard.facts.devices import division_facts
from dcp_dashboard.facts.findings import above_bounds
from dcp_dashboard.facts.quantities import duration, percent
from dcp_dashboard.facts.text import transfer_selection
from dcp_dashboard.facts.tiles import serving_transfers, transfer_facts
from dcp_dashboard.library.folder import open_folder, plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.library.summary import caption_of_first_group, count_kinds, group_labels
from dcp_dashboard.web.app import create_app
from dcp_planner import LANES, TransferKind, measure, write_plan
from dcp_planner.report import bound_ratios

KEY = plan_key("small.dcpplan")


@pytest.fixture(scope="module")
def loaded(served_folder):
    return PlanLibrary(open_folder(served_folder)).load(KEY)


def ask(client, path):
    answer = client.get(f"/api/plan/{KEY}/{path}")
    assert answer.status_code == 200, answer.text
    facts = json.loads(answer.text)
    assert facts["schema"] == "dcp.facts/1"
    return facts


def rows_of(facts):
    return [row for section in facts["sections"] for row in section["rows"]]


def words(facts):
    return [(row["label"], "".join(p["text"] for p in row["parts"])) for row in rows_of(facts)]


def links(facts):
    return [part["sel"] for row in rows_of(facts) for part in row["parts"] if "sel" in part]


def test_a_tile_says_its_place_owners_and_messages(client, small_plan):
    tiles, blocks, table = small_plan.tiles, small_plan.blocks, small_plan.transfers
    for tile in range(len(tiles)):
        facts = ask(client, f"tile/{tile}")
        q, kv, device = (int(c[tile]) for c in (tiles.q_block, tiles.kv_block, tiles.device))
        values = facts["values"]
        assert values["pairs"] == tiles.pairs[tile]
        assert (values["q_owner"], values["kv_owner"]) == (blocks.owner[q], blocks.owner[kv])
        assert values["backward_division"] == tiles.backward_division[tile]
        expected = []
        for x in range(len(table)):
            kind = TransferKind(table.kind[x])
            block = kv if kind in (TransferKind.KV, TransferKind.DKV) else q
            end = table.source[x] if kind.is_result else table.target[x]
            if table.block[x] == block and end == device:
                expected.append(x)
        assert values["transfers"] == expected
        linked = {int(text.split("~")[0][9:]) for text in links(facts) if text[:8] == "transfer"}
        assert linked == set(expected)
        assert f"device.{device}" in links(facts)


def test_a_device_says_what_it_waits_for(client, small_plan, small_trace, monkeypatch):
    monkeypatch.setattr(devices, "MAX_DEVICE_WAITS", 1)  # the sum is that of all, not of these
    waits = small_trace.lane == LANES.index("wait")
    for device in range(small_plan.num_devices):
        facts = ask(client, f"device/{device}")
        mine = waits & (small_trace.device == device)
        length = small_trace.end_ns - small_trace.start_ns
        waited = float(length[mine].sum()) / 1e9
        assert facts["values"]["wait_s"]["simulated"] == pytest.approx(waited)
        assert facts["values"]["tokens"] == len(small_plan.local_tokens(device))
        total, own = small_trace.end_ns.max(), small_trace.device == device
        for label, lane in (("Computing", "compute"), ("Waiting", "wait")):
            spent = length[own & (small_trace.lane == LANES.index(lane))].sum()
            assert (label, f"{duration(spent / 1e9)}, {percent(spent / total)}") in words(facts)
        done = small_trace.end_ns[own].max()
        assert ("Finished at", f"{duration(done / 1e9)} of {duration(total / 1e9)}") in words(facts)


def test_a_pair_says_both_ways(client, small_plan):
    table = small_plan.transfers
    facts = ask(client, "device/0/1")
    for name, a, b in (("size_bytes", 0, 1), ("back_bytes", 1, 0)):
        own = table.size_bytes[(table.source == a) & (table.target == b)]
        assert facts["values"][name] == own.sum()
        size = devices.quantities.size(own.sum())
        assert (f"{a} → {b}", f"{size} in {len(own)} messages") in words(facts)
    assert ("Path", "within a node") in words(facts)
    assert ("Path", "between nodes") in words(ask(client, "device/1/2"))


def test_a_division_says_its_load_and_when_it_runs(client, small_plan, small_trace):
    tiles = small_plan.tiles
    for direction, column in (("forward", tiles.division), ("backward", tiles.backward_division)):
        for division in range(int(column.max()) + 1):
            facts = ask(client, f"division/{direction}/{division}")
            chosen = column == division
            assert facts["values"]["pairs"] == tiles.pairs[chosen].sum()
            of_device = [tiles.pairs[chosen & (tiles.device == d)].sum() for d in range(4)]
            most = max(of_device) * 4 / sum(of_device)
            assert facts["values"]["max_over_mean"] == pytest.approx(most)
            labels = [label for label, _ in words(facts)]
            assert labels.count("Computed") == 2  # predicted and measured
    one = ask(client, "division/forward/1?device=2")
    assert one["sel"] == "division.1~backward.0~device.2"


def test_a_message_says_its_route_and_the_tiles_it_serves(client, small_plan, loaded):
    table, tiles = small_plan.transfers, small_plan.tiles
    for x in range(len(table)):
        facts = ask(client, f"transfer/{x}")
        kind = TransferKind(table.kind[x])
        device = table.source[x] if kind.is_result else table.target[x]
        column = tiles.kv_block if kind in (TransferKind.KV, TransferKind.DKV) else tiles.q_block
        reads = (tiles.device == device) & (column == table.block[x])
        served = tuple(f"tile.{tile}~" for tile in np.flatnonzero(reads))
        when = ("Sent", "after division") if kind.is_result else ("Needed", "before division")
        assert any((label, text[: len(when[1])]) == when for label, text in words(facts))
        shown = [text for text in links(facts) if text.startswith("tile.")]
        assert len(shown) == min(8, len(served))
        assert all(text.startswith(served) for text in shown)
        assert any("time" in part for row in rows_of(facts) for part in row["parts"])


def test_an_event_is_the_row_of_the_timelines_payload(client):
    header, columns = decode(client.get(f"/api/plan/{KEY}/timeline?source=simulated").data)
    for row in (0, len(columns["start"]) // 2, len(columns["start"]) - 1):
        values = ask(client, f"event/simulated/{row}")["values"]
        assert values["device"] == columns["device"][row]
        assert values["start_ns"] == columns["start"][row] * header["unit_ns"]
        assert values["name"] == header["names"][columns["name"][row]]


def test_both_ends_of_a_message_name_each_other(client):
    _header, columns = decode(client.get(f"/api/plan/{KEY}/timeline?source=simulated").data)
    for lane, label in ((1, "Matching receive"), (2, "Matching send")):
        row = int(np.flatnonzero(columns["lane"] == lane)[0])
        for wanted in (label, "Matching send" if lane == 1 else "Matching receive"):
            facts = ask(client, f"event/simulated/{row}")
            (other,) = [row for row in rows_of(facts) if row["label"] == wanted]
            chosen = dict(part.split(".") for part in other["parts"][0]["sel"].split("~"))
            end = int(chosen["event"])
            for name, same in (("name",) * 2, ("backward",) * 2, ("device", "peer"),
                               ("peer", "device")):  # fmt: skip
                assert columns[name][end] == columns[same][row]
            row = end
        assert ask(client, f"event/simulated/{row}")["sel"].startswith(f"event.{row}~")


def test_pairs_of_a_window_are_those_of_the_mask(client, small_plan):
    total = small_plan.num_tokens
    sequence = np.searchsorted(small_plan.cu_seqlens, np.arange(total), side="right")
    position = np.arange(total)
    dense = (sequence[:, None] == sequence[None]) & (position[:, None] >= position[None])
    for q0, q1, k0, k1 in ((0, 40, 0, 40), (990, 1013, 500, 1009), (0, 2000, 1, 2048)):
        answer = client.get(f"/api/plan/{KEY}/pairs?tokens={q0}-{q1}-{k0}-{k1}")
        header, columns = decode(answer.data)
        assert header["tokens"] == [q0, q1, k0, k1]
        bits = np.unpackbits(columns["bits"].reshape(q1 - q0, -1), axis=1)[:, : k1 - k0]
        assert (bits == dense[q0:q1, k0:k1]).all()


def test_loads_of_the_devices_are_those_of_the_plan(client, small_plan):
    header, columns = decode(client.get(f"/api/plan/{KEY}/devices").data)
    tiles, table = small_plan.tiles, small_plan.transfers
    for device in range(4):
        assert columns["pairs"][device] == tiles.pairs[tiles.device == device].sum()
        assert columns["sent"][device] == table.size_bytes[table.source == device].sum()
    for row in header["rows"]:
        values = columns[row["id"]]
        assert row["ratio"] == pytest.approx(values.max() / values.mean())
    matrix = np.zeros((4, 4))
    matrix[columns["source"], columns["target"]] = columns["bytes"]
    assert matrix.sum() == table.size_bytes.sum()
    assert matrix[0, 1] == table.size_bytes[(table.source == 0) & (table.target == 1)].sum()


def test_bars_of_unequal_devices_are_as_long_as_they_compute(small_plan, tmp_path):
    cluster = replace(small_plan.cluster, devices=((1, 0.5), (1, 1)))
    unequal = replace(small_plan, cluster=cluster)
    write_plan(tmp_path / "small.dcpplan", unequal)
    client = create_app(tmp_path).server.test_client()
    share = np.array([1, 0.5, 1, 1]) / 0.875
    pairs = np.bincount(unequal.tiles.device, unequal.tiles.pairs, 4)
    header, columns = decode(client.get(f"/api/plan/{KEY}/devices").data)
    assert columns["pairs"] == pytest.approx(pairs / share)
    # Level is where all devices end together, as in the figure that the page shows above.
    most = (pairs / share).max() / pairs.mean()
    assert measure(unequal).compute_imbalance == pytest.approx(most)
    assert header["rows"][0]["ratio"] == pytest.approx(most)
    assert header["rows"][0]["mean"] == pytest.approx(pairs.mean())
    computes = dict(words(ask(client, "device/1")))["Computes"]
    assert f"{pairs[1] / share[1] / pairs.mean():.2f}" in computes


def test_tiles_of_the_batch_are_full_partial_or_empty_within_their_sequence(small_plan):
    tiles, sequence = small_plan.tiles, small_plan.blocks.sequence
    kinds = np.where(sequence[:, None] == sequence, 0, -1)
    kinds[tiles.q_block, tiles.kv_block] = tiles.kind
    names = ("empty", "partial", "full")
    expected = {name: int((kinds == kind).sum()) for kind, name in enumerate(names)}
    assert count_kinds(small_plan, np.ones(len(sequence), np.bool_)) == expected
    assert min(expected.values()) > 0


def test_a_sequence_says_its_tokens_tiles_owners_and_bytes(client, small_plan):
    blocks, tiles, transfers = small_plan.blocks, small_plan.tiles, small_plan.transfers
    for sequence, length in enumerate((1000, 560, 488)):
        facts = ask(client, f"sequence/{sequence}")
        own = [b for b in range(len(blocks)) if blocks.sequence[b] == sequence]
        seen = [t for t in range(len(tiles)) if tiles.q_block[t] in own]
        values = facts["values"]
        assert (values["end"] - values["begin"], values["blocks"]) == (length, len(own))
        assert values["pairs"] == length * (length + 1) // 2
        assert sum(values["tiles"].values()) == len(own) ** 2
        assert values["tiles"]["full"] + values["tiles"]["partial"] == len(seen)
        assert values["bytes"] == transfers.size_bytes[np.isin(transfers.block, own)].sum()
        devices = {int(blocks.owner[b]) for b in own} | {int(tiles.device[t]) for t in seen}
        assert {f"device.{device}" for device in devices} == set(links(facts))
        assert ("Sample", f'{{"len": {length}}}') in words(facts)
        assert ("Row", small_plan.sequence_names[sequence]) in words(facts)


def test_a_wait_shows_the_chain_that_ends_it(client, small_trace):
    start, end, transfer = small_trace.start_ns, small_trace.end_ns, small_trace.transfer
    is_receive = small_trace.lane == LANES.index("receive")
    lengths = []
    for wait in np.flatnonzero(small_trace.lane == LANES.index("wait")).tolist():
        facts = ask(client, f"event/simulated/{wait}")
        chain = np.array(facts["values"]["chain"])
        lengths.append(len(chain))
        assert end[chain[0]] == end[wait]
        assert small_trace.device[chain[0]] == small_trace.device[wait]
        assert (end[chain] > start[wait]).all()
        assert (np.diff(end[chain]) <= 0).all()
        for step, before in pairwise(chain.tolist()):
            if is_receive[step]:  # what arrives has left before
                assert transfer[before] == transfer[step]
        assert {f"event.{i}" for i in chain} <= {link.split("~")[0] for link in links(facts)}
    assert max(lengths) > 2


def test_time_and_bytes_over_their_bounds_lie_between_those_of_the_directions(loaded):
    trace = loaded.traces["simulated"]
    ratios = bound_ratios(loaded.plan, tuple(trace.seconds(is_backward=b) for b in (False, True)))
    for name, found in above_bounds(loaded).items():
        forward, backward = (ratios[f"{direction}_{name}"] for direction in ("forward", "backward"))
        assert 1 <= min(forward, backward) <= found <= max(forward, backward)


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
