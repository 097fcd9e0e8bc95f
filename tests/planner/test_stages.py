"""Stages between a batch and its plan, on small inputs: cuts, starts of the search, tables."""

import json
from dataclasses import replace

import numpy as np
import pytest
from dense_blocks import causal_of, sparsity_of

from dcp_dsl import Slabs
from dcp_planner import Cluster, ModelShape, PlanConfig, PlanError, cut_blocks, measure
from dcp_planner.baselines import (
    HEAD_KINDS,
    StaticHeads,
    groups_worth_trying,
    largest_team,
    team_sizes,
)
from dcp_planner.model.cuts import choose_block_size, count_pairs
from dcp_planner.model.problem import Caps, Placement, build_workload, cap_of, loads_on
from dcp_planner.schedule.divisions import Manner, Schedule, Stages, cut_divisions
from dcp_planner.schedule.emission import assemble
from dcp_planner.search import native
from dcp_planner.search.caps import find_shortfalls, prices_of
from dcp_planner.search.native import EFFORTS, Search, device_tree, ladder, tiles_placed
from dcp_planner.search.refinement import by_documents, seeds
from dcp_planner.search.state import Split, coarsen, problem_of, restrict
from dcp_planner.tables.head_groups import expand_head_groups, first_groups, possible_groups
from dcp_planner.tables.metrics import (
    accumulator_bytes,
    measure_memory,
    receive_buffer_bytes,
    receive_rows,
)
from dcp_planner.tables.programs import OPS
from dcp_planner.tables.visits import Visits, find_feeders, inputs_of_results

SHAPE = ModelShape(4, 2, 16)


def window_with_sink(tokens, window, sink):
    whole = sink + window
    rows = [
        (0, whole, 0, 1, 0, 1), (whole, tokens, 0, sink, 0, 0),
        (whole, tokens, sink + 1, whole + 1, 1, 1),
    ]  # fmt: skip
    return Slabs(tokens, *np.array(rows).T)


def lists(*arrays):
    return "\n".join(str(np.asarray(a).tolist()) for a in arrays)


BATCHES = {
    "one document": [causal_of(131_072)],
    "documents of many lengths": [*map(causal_of, (65_536, 40_000, 20_000, 5_000, 500, 7))],
    "sixty documents": [causal_of(1000)] * 60,
    "six equal documents": [causal_of(8192)] * 6,
    "a window and a sink": [window_with_sink(20_000, 1000, 64), causal_of(300)],
    "few tokens": [causal_of(40), causal_of(3)],
    "one token": [causal_of(1)],
    "nothing": [],
}
SIZES = [
    (Cluster(1, 2), 0.1), (Cluster(1, 8), 0.02), (Cluster(4, 8), 0.1), (Cluster(3, 1), 1.0),
    (Cluster(1, 50), 0.0),
]  # fmt: skip


def test_block_sizes(snapshots):
    texts = {}
    for name, sequences in BATCHES.items():
        said = []
        for cluster, tolerance in SIZES:
            config = PlanConfig(token_tolerance=tolerance)
            block = choose_block_size(sequences, cluster, config)
            cut = cut_blocks(sequences, block)
            said.append(
                f"{cluster.num_devices} devices within {1 + tolerance}: {block} tokens, "
                f"{len(cut.q_bounds) - 1} blocks, {cut.num_blocks} tiles, {cut.num_pairs:,} pairs"
            )
        texts[name] = "\n".join(said)
    many = choose_block_size([causal_of(16_384)], Cluster(1, 320))
    texts["one document on 320 devices"] = f"{many} tokens"
    snapshots.check("block_sizes", texts)


def test_borders(snapshots):
    texts = {}
    for name, sequences, block in (
        ("a window and a sink", [window_with_sink(1000, 300, 20)], 200),
        ("the same in short blocks", [window_with_sink(100, 30, 2)], 16),
        ("equal breakpoints too close to each other",
         [Slabs(512, [0, 250, 256], [250, 256, 512], [0, 0, 0], [512] * 3, [0] * 3, [0] * 3)], 256),
        ("a key and a row that matter more", [Slabs(
            640, [0, 300, 306], [300, 306, 640], [0, 0, 10], [306, 640, 300], [0] * 3, [0] * 3,
        )], 320),
        ("whole sixteens", [causal_of(1000)], 128),
        ("no whole sixteens", [causal_of(1000)], 127),
        ("two sequences", [causal_of(37), causal_of(5)], 8),
    ):  # fmt: skip
        cut = cut_blocks(sequences, block)
        texts[name] = lists(cut.q_bounds, cut.kind, cut.row_ptr, cut.block_q)
    snapshots.check("borders", texts)


def test_pairs_beyond_what_float64_counts_are_exact():
    whole = 1 << 27
    q, kv, pairs = count_pairs(causal_of(whole), np.array([0, whole]))
    assert (q.tolist(), kv.tolist(), pairs.tolist()) == ([0], [0], [whole * (whole + 1) // 2])


@pytest.mark.parametrize(
    ("sizes", "parts", "tolerance", "cap"),
    [
        ([5, 5, 5], 2, 0.1, 10),  # two whole items, whatever the tolerance
        ([1] * 100, 4, 0.1, 27), ([1] * 10, 2, 0.2, 6), ([7, 1, 1, 1], 2, 0.5, 7),
        ([3, 3], 2, 100.0, 6),  # never more than all
        ([], 3, 0.1, 0), ([0, 0], 3, 0.1, 0),
    ],
)  # fmt: skip
def test_a_cap_is_the_tolerance_or_what_whole_items_allow(sizes, parts, tolerance, cap):
    assert cap_of(np.array(sizes, np.int64), parts, tolerance) == cap


@pytest.fixture(scope="module")
def batch(masks):
    question = masks.shared_question(12, [16, 20, 16])
    return sparsity_of([question, masks.causal(26), masks.sliding_window(40, 9)], 8)


def test_starts_of_the_search(batch, snapshots, masks):
    workload = build_workload(batch, SHAPE)
    problem, texts = problem_of(workload), {}
    for title, of_tree in (
        ("trees of nodes", [Cluster(n, 2) for n in (1, 2, 17, 18)]),
        ("trees of devices", [Cluster(1, n) for n in (1, 16, 20, 34, 37)]),
    ):
        texts[title] = "\n".join(str(device_tree(cluster)).replace(" ", "") for cluster in of_tree)
    for parts in (2, 3, 5):
        splits = [*seeds(problem, parts)]
        texts[f"seeds of {parts} parts"] = lists(*(split.owner for split in splits))
        assert all(np.array_equal(one.part, one.owner[problem.tile_q]) for one in splits)
    long = problem_of(build_workload(sparsity_of([masks.causal(90), masks.causal(6)], 6), SHAPE))
    texts["a document that fits nowhere"] = lists(by_documents(long, 4), by_documents(long, 16))
    start = Split(problem.tile_q // 6 % 3, np.arange(problem.num_blocks, dtype=np.int32) // 4 % 3)
    for part in (0, 2):
        inner, tiles, blocks = restrict(problem, start, part)
        texts[f"part {part}"] = lists(
            tiles, blocks, inner.tile_q, inner.tile_kv, inner.work, inner.sequence, inner.tokens,
            inner.is_owned.astype(int), inner.weight[0],
        )  # fmt: skip
        coarse, tile, block = coarsen(inner)
        texts[f"part {part}, coarser"] = lists(
            tile, block, coarse.tile_q, coarse.tile_kv, coarse.work, coarse.sequence,
            coarse.tokens, coarse.is_owned.astype(int), coarse.weight[1],
        )  # fmt: skip
    texts["prices"] = "\n".join(str(prices_of(problem, parts).tolist()) for parts in (1, 2, 64))
    snapshots.check("starts_of_the_search", texts)


def told(found, workload, cluster):
    pairs, tokens = loads_on(found, workload, cluster)
    owners, tiles = ("".join(map(str, x)) for x in (found.device_of_data, found.device_of_compute))
    return f"owners {owners}\n{tiles}\n{pairs.tolist()} pairs, {tokens.tolist()} tokens"


def test_levels_of_the_search(masks, snapshots):
    """Larger problems, which are coarsened, on more devices than one level takes."""
    question = masks.shared_question(40, [60, 50])
    batch = sparsity_of([masks.causal(104), question, masks.causal(9)], 8)
    workload, texts = build_workload(batch, SHAPE), {}
    uneven = Cluster(2, 3, devices=((1, 1, 0.5), (1, 0.8)), inter_bytes_per_s=1e11)
    config = PlanConfig(budget="fast", seed=4)
    for name, cluster in (("two nodes", Cluster(2, 2)), ("unequal", uneven)):
        for step, found in enumerate(ladder(workload, cluster, config)):
            texts[f"{name}, step {step}"] = told(found, workload, cluster)
    search = Search.of(workload, uneven, config)
    texts["caps"] = f"{search.caps} of {workload.compute_pairs.sum()}, {workload.cu_seqlens[-1]}"
    owner = np.arange(workload.num_blocks, dtype=np.int32) // 6 % 4
    for number, found in enumerate(tiles_placed(owner, workload, Cluster(2, 2), config)):
        texts[f"owners given, {number}"] = told(found, workload, Cluster(2, 2))
    snapshots.check("levels_of_the_search", texts)


def test_a_state_too_wide_for_memory_is_not_made(batch, monkeypatch):
    workload, cluster = build_workload(batch, SHAPE), Cluster(2, 2)
    split = Split(np.zeros(workload.num_tiles, np.int32), np.zeros(workload.num_blocks, np.int32))
    search = Search(workload, problem_of(workload), cluster, EFFORTS["fast"], Caps(400, 40), 0)
    most = 2 * workload.num_blocks * 6  # a column for each of four devices and two nodes
    for cells, stays in ((most - 1, True), (most, False)):
        monkeypatch.setattr(native, "_MOST_CELLS", cells)
        for change in (search.polish, search.hold, search.level, lambda s: search.relieve(s, 99)):
            assert (change(split) is split) == stays


def test_missed_tolerances(masks, snapshots):
    workload, texts = build_workload(sparsity_of([masks.causal(24)], 8), SHAPE), {}
    for name, cluster, owner, tiles, config in (
        ("level", Cluster(1, 1), [0, 0, 0], [0] * 6, PlanConfig()),
        ("above both", Cluster(1, 2), [0, 0, 1], [0, 0, 0, 1, 1, 0], PlanConfig()),
        ("just within", Cluster(1, 2), [0, 0, 1], [0, 0, 0, 1, 1, 1],
         PlanConfig(compute_tolerance=0.2, token_tolerance=0.34)),
        ("smaller blocks", Cluster(1, 3), [0, 1, 1], [0, 1, 2, 2, 2, 1],
         PlanConfig(compute_tolerance=0.01)),
        ("an uneven device", Cluster(1, 2, devices=((1, 0.5),)), [0, 1, 0], [0, 1, 0, 1, 0, 1],
         PlanConfig()),
        ("tokens have a price", Cluster(1, 2), [0, 0, 1], [0, 0, 0, 1, 1, 1],
         PlanConfig(token_tolerance=0.2, token_seconds=1e-9)),
    ):  # fmt: skip
        found = find_shortfalls(Placement(owner, tiles), workload, cluster, config)
        texts[name] = "\n".join(f"{warning.code}: {warning.message}" for warning in found)
    snapshots.check("missed_tolerances", texts)


def plans_of(batch):
    """Plans of a poor placement: everything travels, some of it twice."""
    workload = build_workload(batch, SHAPE)
    block, tile = np.arange(workload.num_blocks), np.arange(workload.num_tiles)
    cluster = Cluster(2, 2, devices=((1, 1), (1, 0.5)))
    placement = Placement(block * 5 // 3 % 4, (tile * 7 // 2 + tile // 9) % 4)
    for manner in (Manner("node", is_frugal=True), Manner("direct", is_frugal=True, idle=0)):
        cuts = [cut_divisions(workload, placement, d, 6) for d in ("forward", "backward")]
        schedule = Schedule(*cuts, (manner, manner))
        yield assemble(workload, cluster, placement, schedule, "by hand")
    groups = Placement(block % 2, (np.tile(tile, 4) // 3) % 2, head_groups=4)
    expanded = np.zeros(4 * len(tile), np.int32)
    schedule = Schedule(expanded, expanded, (Manner("node"), Manner("node")))
    yield assemble(workload, Cluster(1, 2), groups, schedule, "by hand")


def test_figures(batch, snapshots):
    texts = {}
    names = ("by node", "fetched again", "head groups")
    for name, plan in zip(names, plans_of(batch), strict=True):
        found = measure(plan).to_json()
        texts[name] = "\n".join(f"{key}: {json.dumps(found[key])}" for key in found)
        memory = measure_memory(plan)
        texts[f"memory, {name}"] = lists(
            memory.saved, memory.forward, memory.backward, memory.peak, accumulator_bytes(plan),
            receive_buffer_bytes(plan), receive_rows(plan, "forward"),
            receive_rows(plan, "backward"),
        )  # fmt: skip
    snapshots.check("figures", texts)


def test_visits(batch, snapshots):
    texts = {}
    for name, plan in zip(("by node", "fetched again"), plans_of(batch), strict=False):
        found = Visits.of(plan)
        columns = (*found.read_by[0], *found.read_by[1], found.input_of, found.merged_into,
                   found.feeder)  # fmt: skip
        texts[name] = "\n".join(
            " ".join(f"{row}:{x}" for row, x in enumerate(column.tolist()) if x >= 0)
            for column in columns
        )
        assert np.array_equal(found.input_of, inputs_of_results(plan.transfers))
        assert np.array_equal(found.feeder, find_feeders(plan.transfers))
    snapshots.check("visits", texts)


def in_words(program):
    return "\n".join(map(str, program.instructions))


def test_programs_of_head_groups(masks, snapshots):
    """Copies in every group are written once in a plan, and once for each group when expanded."""
    workload = build_workload(sparsity_of([masks.causal(16)], 8), ModelShape(4, 2, 4))
    placed = Placement([0, 1], [0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 1, 0], head_groups=4)
    division = np.array([0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1])
    schedule = Schedule(division, division, (Manner("node"), Manner("node")))
    plan = assemble(workload, Cluster(1, 2), placed, schedule, "by hand")
    texts = {}
    for name, one in (("plan", plan), ("expanded", expand_head_groups(plan))):
        texts[name] = lists(
            one.cu_seqlens, one.blocks.start, one.blocks.owner, one.tiles.q_block,
            one.tiles.kv_block, one.transfers.block, one.transfers.slot, one.slabs.table(),
        )  # fmt: skip
        texts[f"{name}, forward"] = "\n".join(map(in_words, one.forward))
        texts[f"{name}, backward"] = in_words(one.backward[1])
    snapshots.check("programs_of_head_groups", texts)
    assert one.forward[-1] == one.forward[1]
    assert one.forward[:1] == (one.forward[0],)
    assert repr(plan.forward) == f"<programs of 2 devices, {len(plan.forward.table)} instructions>"


def test_names_of_sequences_are_all_or_none_and_short(masks):
    workload = build_workload(sparsity_of([masks.causal(8), masks.causal(8)], 8), SHAPE)
    still = Schedule([0, 0], [0, 0])
    plan = assemble(workload, Cluster(1, 1), Placement([0, 0], [0, 0]), still, "by hand")
    for names in ((), ("", "x" * 200)):
        assert replace(plan, sequence_names=names).sequence_names == names
    for names, says in (
        (("a",), "2 or none, got 1"), (("a", "b", "c"), "2 or none, got 3"),
        (("a", "x" * 201), "at most 200 characters, got 201"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"Plan.sequence_names: expected {says}"):
            replace(plan, sequence_names=names)


def test_numbers_of_head_groups():
    for shape in (ModelShape(8, 2, 4), ModelShape(6, 6, 4), ModelShape(12, 4, 4)):
        for groups in possible_groups(shape):
            reads = [head * shape.kv_heads // shape.q_heads for head in range(shape.q_heads)]
            each = shape.q_heads // groups
            read = [{*reads[g * each : (g + 1) * each]} for g in range(groups)]
            first = [min(h for h in range(g + 1) if read[h] & read[g]) for g in range(groups)]
            assert first_groups(shape, groups).tolist() == first


@pytest.mark.parametrize("is_frugal", [False, True])
@pytest.mark.parametrize("hops", [(1, 1), (3, 2)])
def test_stages_of_three_divisions(is_frugal, hops, snapshots):
    stages = Stages(3, hops, is_frugal=is_frugal)
    columns = (stages.op.tolist(), stages.division.tolist(), stages.key.tolist())
    rows = "\n".join(
        f"{number} {OPS[op]} of {division}" + (f", key {key}" if key >= 0 else "")
        for number, (op, division, key) in enumerate(zip(*columns, strict=True))
    )
    name = f"stages_{'frugal' if is_frugal else 'eager'}_{hops[0]}_{hops[1]}"
    snapshots.check(name, {"rows": rows, "at": lists(stages.attention, *stages.at)})


def test_heads_on_devices(snapshots):
    """Which layouts of heads there are, and why not."""
    texts = {}
    unequal = Cluster(1, 2, devices=((1, 0.5),))
    for shape, clusters in (
        (ModelShape(8, 2, 4), (Cluster(1, 1), Cluster(1, 4), Cluster(4, 2), unequal)),
        (ModelShape(6, 3, 4), (Cluster(2, 4), Cluster(3, 3))),
    ):
        for cluster in clusters:
            said = [f"teams {team_sizes(cluster)}, groups {groups_worth_trying(shape, cluster)}"]
            for kind in HEAD_KINDS:
                for groups in ("auto", 2, 8):
                    layout, config = StaticHeads(kind), PlanConfig(head_groups=groups)
                    try:
                        found = str(layout.groups(shape, cluster, config))
                    except PlanError as error:
                        found = str(error)
                    assert layout.is_possible(shape, cluster, config) == found.isdigit()
                    said.append(f"{kind}, {groups} groups: {found}")
            for groups in possible_groups(shape):
                sizes = [largest_team(cluster, groups, is_inside=b) for b in (True, False)]
                said.append(f"{groups} groups on teams of {sizes}")
            title = f"{shape.q_heads} and {shape.kv_heads} heads, {cluster.nodes} nodes of "
            ends = f"{cluster.devices_per_node}{', not equal' if cluster.devices else ''}"
            texts[title + ends] = "\n".join(said)
    snapshots.check("heads_on_devices", texts)
