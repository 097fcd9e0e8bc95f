"""Every compiled function on small inputs, compiled and as the Python that it is written in.

Both must give the texts of the snapshots. The search is heuristic, so any change of it, better or
worse, shows there; what can be counted otherwise is compared with a count, here or elsewhere.
"""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from dense_blocks import sparsity_of

from dcp_planner import Cluster, ModelShape, digest, predict, validate
from dcp_planner.model.cost_model import KernelWork
from dcp_planner.model.problem import Caps, Placement, build_workload
from dcp_planner.schedule.divisions import Arrivals, Manner, Schedule, cut_divisions, cut_streamed
from dcp_planner.schedule.emission import assemble
from dcp_planner.schedule.slots import allocate_rows, find_shared_rows
from dcp_planner.search.bottleneck import load_state_of, relieve
from dcp_planner.search.caps import exchange_owners, hold_caps, level_work
from dcp_planner.search.native import EFFORTS, Search
from dcp_planner.search.refinement import descend
from dcp_planner.search.state import Split, bytes_of, cost_of, fill, problem_of, repeated
from dcp_planner.simulation.schedules import STREAMINGS
from dcp_planner.simulation.simulator import simulate
from dcp_planner.tables.plan import TransferKind

DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
SMALL = Cluster(2, 2, flops_per_s=1e10, inter_bytes_per_s=1e8, intra_bytes_per_s=1e9)
UNEVEN = replace(SMALL, nodes=2, devices_per_node=3, devices=((1, 1, 0.5), (1, 0.8)))
SHAPE = ModelShape(4, 2, 16)


@pytest.fixture(scope="module", params=["interpreted", "compiled"], autouse=True)
def _mode(request):
    if request.param == "interpreted":
        request.getfixturevalue("interpreted")


@pytest.fixture
def batch(masks):
    question = masks.shared_question(12, [16, 20, 16])
    return sparsity_of([question, masks.causal(26), masks.sliding_window(40, 9)], 8)


def digits(numbers):
    return "".join(DIGITS[n] if n >= 0 else "." for n in np.asarray(numbers).tolist())


def by_row(of_tile, q_block):
    """Write a digit for each tile, the tiles of a row of blocks together."""
    return " ".join(
        map(digits, np.split(np.asarray(of_tile), np.flatnonzero(np.diff(q_block)) + 1))
    )


def short_hash(*arrays):
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[
        :12
    ]


def told(plan):
    """Describe the transfers of a plan and its timeline."""
    moves, trace, took = plan.transfers, simulate(plan), predict(plan)
    crosses = plan.cluster.link_class(moves.source, moves.target) > 0
    return (
        f"{len(moves)} transfers, {int(crosses.sum())} between nodes, hops "
        f"{np.bincount(moves.hop).tolist()}, {int(moves.size_bytes.sum()):,} bytes; digest "
        f"{digest(plan)[:12]}\n"
        f"forward {took.forward_s * 1e6:.3f} us, backward {took.backward_s * 1e6:.3f} us; "
        f"{len(trace)} events {short_hash(trace.start_ns, trace.end_ns, trace.ready_ns)}\n"
    )


def spread_out(workload, devices):
    """Place a workload badly, so that much travels."""
    block, tile = np.arange(workload.num_blocks), np.arange(workload.num_tiles)
    return Placement(block * 5 // 3 % devices, (tile * 7 // 2 + tile // 9) % devices)


def test_cuts(batch, snapshots):
    workload, found = build_workload(batch, SHAPE), {}
    placement, q_block = spread_out(workload, 4), workload.compute_q
    for way in STREAMINGS:
        cut = cut_streamed(workload, placement, "forward", 5, way)
        found[f"{way.by}, {'in ring, ' if way.in_ring else ''}even {way.even}"] = by_row(
            cut, q_block
        )
    at_ns = np.arange(workload.num_tiles) * 17 % 30
    for name, weight in (("bytes", None), ("weights", 1 + at_ns * at_ns)):
        for parts in (1, 2, 40):
            cut = cut_divisions(workload, placement, "backward", parts, Arrivals(at_ns, weight))
            found[f"{parts} parts by arrival, even {name}"] = by_row(cut, q_block)
    snapshots.check("cuts", found)


def search_of(workload, cluster, caps):
    problem = problem_of(workload)
    mean = [int(n.sum()) / cluster.num_devices for n in (problem.work, problem.tokens)]
    limits = Caps(*(int(cap * each) for cap, each in zip(caps, mean, strict=True)))
    return Search(workload, problem, cluster, EFFORTS["fast"], limits, 1)


def told_state(name, state, q_block):
    loads = [" ".join(f"{load:.0f}" for load in row) for row in state.loads]
    return (
        f"{name}: owners {digits(state.owner)}  tiles {by_row(state.part, q_block)}\n"
        f"    {bytes_of(state):.0f} bytes, {cost_of(state):.6g} cost; work {loads[0]}, "
        f"tokens {loads[1]}; random {int(state.random[0]):x}\n"
    )


def told_loads(loads):
    return "\n".join(" ".join(f"{x:.4g}" for x in row) for row in loads.load) + "\n"


CAPS = {
    "roomy": (SMALL, (1.5, 1.5)),
    "tight": (SMALL, (1.02, 1.0)),
    "uneven": (UNEVEN, (1.2, 1.1)),
    "one node": (Cluster(1, 3), (1.1, 1.1)),
    "ties": (SMALL, (1.0, 1.25)),
}


@pytest.mark.parametrize("name", CAPS)
def test_steps_of_the_search(batch, snapshots, name):
    cluster, caps = CAPS[name]
    equal = sparsity_of([np.ones((16, 16), bool), np.ones((24, 24), bool)], 4)
    workload = build_workload(equal if name == "ties" else batch, SHAPE)
    search, q_block = search_of(workload, cluster, caps), workload.compute_q
    bad = spread_out(workload, cluster.num_devices)
    skewed = np.where(np.arange(workload.num_tiles) % 3 == 0, 1, bad.device_of_compute)
    start = search.state_of(Split(skewed, bad.device_of_data // 2))
    texts, states = [], {"start": start}

    def tell(step, change, seed=5, from_="start"):
        states[step] = state = repeated(states[from_], seed)
        result = change(state)
        texts.append(told_state(step, state, q_block))
        return result

    tell("unchanged", fill)
    tell("level", level_work)
    tell("held", lambda state: hold_caps(state, 2))
    for cap in (30, 48):
        owner = exchange_owners(repeated(start, 0), 1, cap)
        texts.append(f"exchanged under {cap} tokens: owners {digits(owner)}\n")
    for sweeps, noise in ((1, 0.0), (6, 0.0), (2, 4e3), (6, 4e3)):
        tell(f"{sweeps} sweeps, noise {noise:g}", lambda s, n=sweeps, x=noise: descend(s, n, x))
    for budget, from_ in ((0, "start"), (150, "held"), (1500, "held"), (3000, "start")):
        loads, seen = tell(
            f"{from_} relieved by {budget} moves",
            lambda s, b=budget: relieved(s, b, workload, cluster), from_=from_,
        )  # fmt: skip
        texts.append(f"    {seen} moved\n")
        texts += [told_loads(loads)] if budget in (0, 3000) else []
    snapshots.check(f"search_{name.replace(' ', '_')}", {"steps": "".join(texts)})


def test_a_tile_leaves_only_for_a_part_that_stays_emptier(masks):
    workload = build_workload(sparsity_of([masks.causal(16)], 8), SHAPE)  # 36, 64 and 36 pairs
    search = Search(workload, problem_of(workload), Cluster(1, 2), EFFORTS["fast"], Caps(1, 99), 0)
    for tiles, after in (([0, 0, 1], [1, 0, 1]), ([0, 0, 0], [0, 1, 0]), ([1, 0, 1], [1, 0, 1])):
        state = search.state_of(Split(np.array(tiles), np.zeros(2, np.int32)))
        level_work(state)
        assert state.part.tolist() == after


def relieved(state, budget, workload, cluster):
    own_limits = state._replace(limits=state.limits.copy())  # they are raised to what is loaded
    loads = load_state_of(own_limits, workload, cluster)
    return loads, relieve(loads, budget)


WORKS = {
    "list": {"sms": 5, "cta_keys": 3},
    "persistent": {"sms": 5, "kernel_schedule": "persistent"},
    "split": {"sms": 5, "kernel_schedule": "split", "copy_bytes_per_s": 1e9, "cta_keys": 2},
    "split, two": {"sms": 2, "kernel_schedule": "split", "copy_bytes_per_s": 1e9},
    "one multiprocessor": {"sms": 1, "cta_keys": 3},
}


@pytest.mark.parametrize("is_backward", [False, True])
def test_launches(batch, snapshots, is_backward):
    """Launches of no tile, one tile, a row of tiles, a column, all."""
    workload, texts = build_workload(batch, SHAPE), {}
    tiles = workload.compute_q, workload.compute_kv, workload.compute_pairs
    rows = [np.flatnonzero(chosen) for chosen in (
        tiles[2] < 0, np.arange(len(tiles[0])) == 7, tiles[0] == 6, tiles[1] == 0, tiles[2] > 0,
    )]  # fmt: skip
    ptr = np.append(0, np.cumsum([len(row) for row in rows]))
    for name, choices in WORKS.items():
        cluster = Cluster(1, 1, flops_per_s=1e9, kernel_tile=3, **choices)
        work = KernelWork.of(tiles, workload.block_tokens, SHAPE, cluster, is_backward=is_backward)
        took = work.launch_seconds(np.arange(5), ptr, np.concatenate(rows).astype(np.int32))
        texts[name] = " ".join(f"{1e6 * seconds:.6g}" for seconds in took)
    snapshots.check(f"launches_{'backward' if is_backward else 'forward'}", texts)


def spans(seed, count):
    rng = np.random.default_rng(seed)
    taken = rng.integers(0, 6, count)
    return (
        rng.integers(0, 2, count),
        taken,
        taken + rng.integers(1, 5, count),
        rng.integers(1, 4, count),
    )


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_the_lowest_that_are_free_all_along(seed):
    group, taken, freed, rows = spans(seed, 14)
    slot = allocate_rows(group, taken, freed, rows)
    held = {0: {}, 1: {}}  # rows of each buffer that are held, until when
    for i in np.lexsort((taken, group)).tolist():
        here = {row: end for row, end in held[group[i]].items() if end > taken[i]}
        first = next(at for at in range(99) if not any(at + row in here for row in range(rows[i])))
        assert slot[i] == first
        held[group[i]] = here | dict.fromkeys(range(first, first + int(rows[i])), freed[i])
    assert find_shared_rows(group, taken, freed - 1, slot, rows) is None


@pytest.mark.parametrize("seed", range(24))
def test_rows_that_two_spans_share_are_found(seed):
    group, taken, freed, rows = spans(seed, 5)
    slot = np.random.default_rng(seed).integers(0, 9, 5)
    clashes = {
        (i, j) for i in range(5) for j in range(5)
        if i != j and group[i] == group[j]
        and taken[i] <= freed[j] and taken[j] <= freed[i]
        and slot[i] < slot[j] + rows[j] and slot[j] < slot[i] + rows[i]
    }  # fmt: skip
    found = find_shared_rows(group, taken, freed, slot, rows)
    assert found in clashes if clashes else found is None


ORDERS = ("any", "fifo", "grouped")
MANNERS = {
    "direct": Manner("direct"),
    "node": Manner("node"),
    "node, frugal": Manner("node", is_frugal=True),
    "node, striped": Manner("node", is_striped=True),
    "node, striped, frugal": Manner("node", is_frugal=True, is_striped=True),
    "direct, idle 1": Manner("direct", is_frugal=True, idle=1),
    "node, idle 0": Manner("node", idle=0),
}
BUSY = replace(
    UNEVEN, nodes=3, devices=((1, 1, 0.5), (1, 0.8), (1, 1, 1)), devices_per_nic=2, rails=2,
    spine_bytes_per_s=4e7, nodes_per_leaf=2, kernel_tile=4, kernel_launch_s=1e-7,
    message_launch_s=2e-7, copy_bytes_per_s=1e10, sms=4, cta_keys=3, pass_s=1e-6,
    host_message_s=1e-8, comm_sms=1, inter_latency_s=2e-5,
)  # fmt: skip


def test_ways_of_blocks(batch, snapshots):
    workload, found = build_workload(batch, SHAPE), {}
    for name, manner in MANNERS.items():
        cluster = SMALL if name == "node, striped, frugal" else BUSY
        placement, parts = (
            spread_out(workload, cluster.num_devices),
            3 if manner.idle is None else 8,
        )
        cuts = [cut_divisions(workload, placement, d, parts) for d in ("forward", "backward")]
        schedule = Schedule(*cuts, (manner, manner))
        plan = assemble(workload, cluster, placement, schedule, name)
        validate(plan)
        text = told(plan)
        slots = [
            plan.transfers.slot[plan.transfers.kind == kind].max(initial=0) for kind in TransferKind
        ]
        text += f"highest rows {[int(slot) for slot in slots]}\n"
        for order in ORDERS:
            other = replace(plan, cluster=replace(cluster, message_order=order))
            text += f"{order}: {predict(other).seconds * 1e6:.3f} us\n"
        found[name] = text
    snapshots.check("ways_of_blocks", found)
