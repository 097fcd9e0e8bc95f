"""Plans that no partitioner would make: blocks and tiles anywhere, buffers given back early or not.

Partitioners keep a tile where its queries are or its keys; here queries, results and gradients
travel everywhere, and rows of buffers take one block after another.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_precision import CASES, assert_as_exact_as_eager, make_hard

from dcp_planner import BufferLimitError, Cluster, ModelShape, PlanConfig, build_plan, validate
from dcp_planner.model.problem import build_workload
from dcp_planner.schedule.divisions import Manner
from dcp_planner.schedule.emission import assemble
from dcp_planner.search.partitioners import place
from dcp_planner.simulation.schedules import make_schedule
from dcp_planner.tables.head_groups import possible_groups
from dcp_runtime import DCPExecutor
from dcp_runtime.transport.loopback import LoopbackWorld

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HEADS = ((2, 2), (4, 2), (3, 1), (8, 4), (4, 1), (1, 1), (6, 3))


def random_plan(lab, masks, shape, rng, cluster=None):
    """Return a plan of random owners, on a cluster of random size if none is given."""
    cluster = cluster or Cluster(int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    config = PlanConfig(
        "static:zigzag",
        routing=str(rng.choice(["direct", "node"])),
        divisions=int(rng.integers(2, 7)),
        head_groups=int(rng.choice(possible_groups(shape))),
    )
    block = max(int(rng.choice([3, 8, 16, 40])), sum(map(len, masks)) // 50)
    workload = build_workload(lab.sparsity_of(masks, block), shape)
    placement = place(workload, cluster, config)
    share = rng.random()  # of what is somewhere else

    def anywhere(devices):
        moved = rng.random(len(devices)) < share
        return np.where(moved, rng.integers(cluster.num_devices, size=len(devices)), devices)

    placement = replace(
        placement,
        device_of_data=anywhere(placement.device_of_data),
        device_of_compute=anywhere(placement.device_of_compute),
    )
    schedule = make_schedule(workload, placement, cluster, config)
    manners = []
    for _ in range(2):
        idle = [None, 0, 1][rng.integers(3)]
        is_striped = idle is None and bool(rng.integers(4))
        manners.append(Manner(config.routing, bool(rng.integers(2)), idle, is_striped))
    schedule = replace(schedule, manners=tuple(manners))
    plan = assemble(workload, cluster, placement, schedule, "random")
    validate(plan)
    return plan


def check(lab, seed):
    rng = np.random.default_rng(seed)
    names = sorted(lab.MASKS)
    lengths = [int(rng.choice([1, 2, rng.integers(1, 120)])) for _ in range(rng.integers(1, 5))]
    masks = [lab.MASKS[names[rng.integers(len(names))]](n) for n in lengths]
    dense = torch.block_diag(*map(torch.tensor, masks)).bool().numpy()
    if not dense.any():
        return
    heads, dim = HEADS[rng.integers(len(HEADS))], int(rng.choice([8, 32, 64, 96, 128]))
    plan = random_plan(lab, masks, ModelShape(*heads, dim, 4), rng)
    dtype = DTYPES[rng.integers(len(DTYPES))]
    qkv = lab.random_qkv(seed, len(dense), *heads, dim, dtype)
    case = CASES[seed // 3 % len(CASES)] if seed % 3 == 0 else None
    if case is not None:
        q, kv, dout = lab.random_qkv(seed, len(dense), *heads, dim, torch.float64)
        q, k, v, sinks = make_hard(case, (q, kv[:, 0], kv[:, 1]), dtype)
        qkv = q, torch.stack([k, v], 1), dout.to(dtype)
    kernel = "reference" if seed % 4 == 0 else None
    got, _ = lab.run_in_threads(plan, *qkv, kernel=kernel, layers=1 + seed % 2)
    if case is None:
        lab.assert_as_exact_as_eager(got, *qkv, dense)
    else:
        of_keys = {"dk": got["dkv"][:, 0], "dv": got["dkv"][:, 1]}
        tensors = q, k, v, torch.full_like(sinks, -torch.inf)
        assert_as_exact_as_eager(
            {"out": got["out"], "dq": got["dq"], **of_keys}, tensors, qkv[2], dense
        )
    for name, blind in (("out", ~dense.any(1)), ("dq", ~dense.any(1)), ("dkv", ~dense.any(0))):
        assert (got[name][blind] == 0).all()


@pytest.mark.parametrize("first", range(20, 40, 10))
def test_blocks_and_tiles_anywhere_are_exact(lab, first):
    for seed in range(first, first + 10):
        check(lab, seed)


def test_a_plan_in_the_least_memory_is_exact(lab):
    mask = lab.MASKS["causal"](96)
    sparsity, shape = lab.sparsity_of([mask], 12), ModelShape(4, 2, 16, 4)
    config = PlanConfig("static:grid", memory_limit_bytes=0)
    with pytest.raises(BufferLimitError) as refused:
        build_plan(sparsity, shape, Cluster(2, 2), config)
    config = replace(config, memory_limit_bytes=refused.value.least)
    plan = build_plan(sparsity, shape, Cluster(2, 2), config)
    lab.check_plan(plan, mask, 3)


def test_nan_in_a_query_stays_in_its_row_and_results_keep_no_buffers(lab):
    mask = lab.MASKS["streaming"](160, 0, 6)  # narrow: rows of buffers soon take another block
    mask[::7] = False
    workload = build_workload(lab.sparsity_of([mask], 8), ModelShape(2, 1, 8, 4))
    cluster, config = Cluster(devices_per_node=2), PlanConfig("static:zigzag", divisions=6)
    placement = place(workload, cluster, config)
    other = replace(placement, device_of_compute=1 - placement.device_of_compute)
    schedule = replace(
        make_schedule(workload, other, cluster, config),
        manners=2 * (Manner(config.routing, is_frugal=True),),
    )
    plan = assemble(workload, cluster, other, schedule, "elsewhere")
    q, kv, _ = lab.random_qkv(1, 160, 2, 1, 8, torch.float32)
    bad = torch.arange(160) % 7 == 1
    q[bad] = torch.nan

    def run(transport):
        prepared = DCPExecutor(transport=transport).prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        results = prepared.forward(q[rows], kv[rows])
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in results)
        return rows, results[0]

    for rows, out in LoopbackWorld(2, timeout_s=60).run(run):
        assert torch.equal(out.isnan().flatten(1).any(1), bad[rows])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1_000, 3_000, 200))
def test_thousands_of_random_placements_are_exact(lab, first):
    for seed in range(first, first + 200):
        check(lab, seed)
