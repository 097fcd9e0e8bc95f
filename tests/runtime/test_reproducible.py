"""Reproducible plans: the same bits on any number of ranks, in any plan, beside any neighbours."""

import random
import re
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from loader_options import make_loader

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import BufferLimitError, Cluster, ModelShape, PlanConfig, build_plan, digest
from dcp_planner.model.cuts import cut_on_grid
from dcp_planner.model.problem import Placement, build_workload
from dcp_planner.schedule.divisions import Manner, Schedule, cut_divisions
from dcp_planner.schedule.emission import assemble
from dcp_planner.tables import receive_buffer_bytes
from dcp_runtime import DCPAttn, DCPExecutor, RunError, sum_gradients, undispatch
from dcp_runtime.execute.exact_sums import ExactSums, digits_of
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.transport.loopback import LoopbackWorld

SPEC = Spec.from_text("""
mask plain = causal
mask window = causal and q - k < 300
mask sink = causal and (q - k < 200 or k < 5)
mask both = abs(q - k) < 400
mask comb = causal and (q - k) % 3 == 0
""")
MASKS = ("plain", "window", "sink", "both", "comb")
LENGTHS = (1, 40, 256, 300, 700, 1111)
NAMES = ("out", "lse", "dq", "dk", "dv")
PARTITIONERS = (
    "portfolio", "native", "static:zigzag", "static:contiguous", "static:ring",
    "static:documents", "static:grid",
)  # fmt: skip
SHAPE = ModelShape(4, 2, 16, 4)


@cache
def document(number, dtype, shape=SHAPE):
    """Return a mask, a length, and q, k, v and dout of a document."""
    rng, generator = random.Random(number), torch.Generator().manual_seed(number)
    heads = (shape.q_heads, shape.kv_heads, shape.kv_heads, shape.q_heads)
    length = rng.choice(LENGTHS)
    tensors = [
        torch.randn(length, h, shape.head_dim, generator=generator, dtype=torch.float64).to(dtype)
        for h in heads
    ]
    return rng.choice(MASKS), length, tensors


def sparsity(documents, block):
    masks = [SPEC.mask(mask).bind(Sample({}, length)) for mask, length, _ in documents]
    return block_sparsity(masks, block, block)


def random_plan(documents, rng, ranks):
    """Plan by any partitioner, or with owners, divisions and routes that no partitioner makes."""
    cluster = Cluster(2, ranks // 2) if ranks % 2 == 0 and rng.random() < 0.5 else (
        Cluster(devices_per_node=ranks)
    )  # fmt: skip
    blocks = sparsity(documents, rng.choice((64, 200, 256, 512, 1024)))
    config = PlanConfig(
        rng.choice(PARTITIONERS), reproducible=True, budget="fast", seed=rng.randrange(99),
        divisions=rng.choice(("auto", 2, 3, 6)), routing=rng.choice(("direct", "node")),
    )  # fmt: skip
    if rng.random() < 0.6:
        return build_plan(blocks, SHAPE, cluster, config)
    work = build_workload(cut_on_grid(blocks), replace(SHAPE, exact_sums=True))
    owner = np.random.default_rng(rng.randrange(99)).integers(ranks, size=work.num_blocks)
    owner = owner.astype(np.int32)
    place = Placement(owner, owner[work.compute_q])
    divisions = [cut_divisions(work, place, way, rng.randrange(1, 5)) for way in
                 ("forward", "backward")]  # fmt: skip
    manner = Manner(config.routing, rng.random() < 0.3)
    return assemble(work, cluster, place, Schedule(*divisions, (manner, manner)), "anywhere")


def run(plan, tensors, kernel=None, lockstep=False):
    """Return out, lse, dq, dk and dv of all tokens, in packed order."""
    q, k, v, dout = tensors

    def work(transport):
        executor = DCPExecutor(transport=transport, kernel=kernel, check_finite=True)
        prepared = executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        mine = [x[rows].requires_grad_() for x in (q, k, v)]
        out = DCPAttn.apply(prepared, mine[0], (mine[1], mine[2]))
        out.backward(dout[rows])
        detached = [x.detach() for x in mine]
        _, lse = prepared.forward(detached[0], (detached[1], detached[2]))
        executor.close()
        return rows, (out.detach(), lse, *(x.grad for x in mine))

    parts = LoopbackWorld(plan.num_devices, lockstep=lockstep).run(work)
    whole = []
    for n in range(len(NAMES)):
        one = parts[0][1][n]
        whole.append(one.new_empty(len(q), *one.shape[1:]))
        for rows, found in parts:
            whole[-1][rows] = found[n]
    return whole


def differing(seed, plans, dtype, ranks=(1, 2, 3, 4, 8), kernel=None):
    """Run documents in several plans beside different neighbours; list differences in bits."""
    rng, known, found = random.Random(seed), {}, []
    for _ in range(plans):
        chosen = [4 * seed, *(4 * seed + n for n in range(1, 4) if rng.random() < 0.5)]
        rng.shuffle(chosen)
        documents = [document(number, dtype) for number in chosen]
        plan = random_plan(documents, rng, rng.choice(ranks))
        tensors = [torch.cat([d[2][n] for d in documents]) for n in range(4)]
        whole, start = run(plan, tensors, kernel, lockstep=kernel == "triton"), 0
        for number, (mask, length, _) in zip(chosen, documents, strict=True):
            mine = [x[start : start + length] for x in whole]
            start += length
            for name, a, b in zip(NAMES, known.setdefault(number, mine), mine, strict=True):
                if not torch.equal(a, b):
                    found.append((name, mask, length, plan.partitioner, plan.num_devices))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_depend_on_the_sequence_alone(dtype):
    assert differing(1 if dtype == torch.float32 else 6, 6, dtype) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_bits_depend_on_the_sequence_alone_in_500_plans(seed):
    assert differing(seed, 5, (torch.float32, torch.bfloat16, torch.float64)[seed % 3]) == []


def test_default_plans_do_not_promise_that():
    """The harness sees differences where there are some."""
    documents = [("plain", 1111, document(3, torch.float32)[2])]
    tensors = [torch.randn(1111, h, 16) for h in (4, 2, 2, 4)]
    found = [
        run(build_plan(sparsity(documents, block), SHAPE, Cluster(devices_per_node=ranks),
                       PlanConfig("static:zigzag")), tensors)
        for ranks, block in ((1, 1111), (4, 100))
    ]  # fmt: skip
    assert not all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("mask", "kernel", "dtype"),
    [
        ("sink", "cpu", torch.float32),
        ("both", "cpu", torch.bfloat16),
        ("both", "reference", torch.float64),
    ],
)
def test_reproducible_plans_are_as_exact_as_others(lab, mask, kernel, dtype):
    masks = [SPEC.mask(mask).bind(Sample({}, n)) for n in (520, 40)]
    config = PlanConfig("static:zigzag", reproducible=True)
    plan = build_plan(block_sparsity(masks, 256, 256), SHAPE, Cluster(devices_per_node=3), config)
    lab.check_plan(plan, plan.mask_tile(0, 560, 0, 560), 5, dtype, kernel=kernel, layers=2)


def test_sums_of_digits_are_those_of_fractions_in_any_order():
    generator = torch.Generator().manual_seed(1)
    terms = torch.randn(40, 3, 2, 1, 8, generator=generator, dtype=torch.float64)
    # Terms from 1e-30 to 1e30, rows that cancel, and rows of zeros.
    terms *= 10.0 ** torch.randint(-30, 31, (40, 3, 2, 1, 1), generator=generator)
    terms[20:, 1] = -terms[:20, 1]
    terms[:, 2] = 0
    terms = terms.float()
    exact = terms.double().sum(0)
    largest = terms.abs().amax((0, -1), keepdim=True)[0].double()
    found = []
    for order in (range(40), reversed(range(40)), torch.randperm(40, generator=generator)):
        parts = [ExactSums(3, terms, digits_of(torch.float32)) for _ in range(3)]
        for n, term in enumerate(order):
            parts[n % 3].add(slice(0, 3), terms[int(term)])
        parts[1].merge(slice(0, 3), parts[0].place, parts[0].digits)
        parts[1].merge(slice(0, 3), parts[2].place, parts[2].digits)
        found.append(parts[1].value(3, torch.float64))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    # 36 bits below the largest term of a row, at the least, times 40 terms.
    assert ((found[0] - exact).abs() <= 40 * largest * 2.0**-36).all()
    assert (found[0][1] == 0).all()
    assert (found[0][2] == 0).all()


def test_a_sum_is_rounded_once_however_its_digits_are_written():
    """Half a unit of float64 and a little more, with a digit that is carried over or not."""
    like, found = torch.zeros(1, 2, 1, 1, dtype=torch.float64), []
    for digits in ((2**30, 0, 2**13, 1), (2**30 - 2**12, 2**30, 2**13, 1)):
        sums = ExactSums(1, like, 4)
        sums.place.fill_(256)
        sums.digits[:] = torch.tensor(digits, dtype=torch.int32).view(1, 4, 1, 1, 1)
        found.append(sums.value(1, torch.float64))
    assert torch.equal(*found)
    assert (found[0] == 2**30 + 2**-22).all()


def test_what_is_not_finite_stays_so():
    terms = torch.ones(2, 2, 1, 4)
    terms[1, 0, 0, 2] = torch.inf
    sums = ExactSums(2, terms, 3)
    sums.add(slice(0, 2), terms)
    sums.add(slice(0, 2), torch.ones(2, 2, 1, 4))
    value = sums.value(2, torch.float32)
    assert (value[0] == 2).all()
    assert value[1, 0].isnan().all()  # the row of the head
    assert (value[1, 1] == 2).all()


def test_kernels_that_add_in_an_order_of_their_own_are_refused():
    plan = build_plan(
        sparsity([document(1, torch.float32)], 256), SHAPE, Cluster(devices_per_node=1),
        PlanConfig("static:zigzag", reproducible=True),
    )  # fmt: skip
    part = prepare_device(plan, 0, 256)
    choice = choose_kernel(torch.float32, "cpu", part=part)
    refused = dict(choice.refused)
    assert choice.kernel.keeps_bits
    for name in ("flash", "flash4"):
        with pytest.raises(RunError, match=re.escape(f"cannot use kernel {name!r}")):
            choose_kernel(torch.bfloat16, "cpu", name, part=part)
        assert refused[name]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory, start_ranks):
    """Train on 1, 2 and 4 processes; return the folder of what they hold."""
    folder = tmp_path_factory.mktemp("worlds")
    for ranks in (1, 2, 4):
        start_ranks(ranks, Path(__file__), folder, folder, 10)
    return folder


@pytest.mark.dist
def test_training_ends_in_the_same_bits_on_one_two_and_four_processes(worlds):
    alone, *others = (torch.load(worlds / f"trained-{ranks}.pt") for ranks in (1, 2, 4))
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(560, 2, 16, generator=generator)
    assert (alone[0] - start).abs().mean() > 0.01  # it has learned
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(alone, other, strict=True))


@pytest.mark.dist
def test_gradients_are_summed_in_the_order_of_ranks(worlds):
    ranks = [torch.load(worlds / f"sums-4-{rank}.pt") for rank in range(4)]
    for number in range(2):
        expected = torch.zeros_like(ranks[0][0][number])
        for own, _, _ in ranks:
            expected = expected + own[number]
        for _, found, _ in ranks:
            assert torch.equal(found[number], expected)
    # Another order gives other bits, so the order was kept.
    assert not torch.equal(sum(own[0] for own, *_ in ranks[::-1]), ranks[0][1][0])
    for *_, refused in ranks:
        assert "DistributedDataParallel adds gradients up in its own order" in refused


def test_plans_in_the_least_memory_give_the_bits_of_one_rank():
    """Blocks leave early, are fetched again, and travel through gateways: the sums are exact."""
    drawn = [document(number, torch.float32) for number in range(40)]
    documents = [one for one in drawn if one[:2] in (("plain", 1111), ("both", 1111))][:2]
    tensors = [torch.cat([d[2][n] for d in documents]) for n in range(4)]
    blocks = sparsity(documents, 256)
    known = run(build_plan(blocks, SHAPE, Cluster(1, 1), PlanConfig(reproducible=True)), tensors)
    for partitioner in ("static:ring", "static:zigzag"):
        config = PlanConfig(partitioner, reproducible=True, memory_limit_bytes=0)
        with pytest.raises(BufferLimitError) as refused:
            build_plan(blocks, SHAPE, Cluster(2, 2), config)
        config = replace(config, memory_limit_bytes=refused.value.least)
        plan = build_plan(blocks, SHAPE, Cluster(2, 2), config)
        free = build_plan(blocks, SHAPE, Cluster(2, 2), replace(config, memory_limit_bytes=None))
        assert receive_buffer_bytes(plan).max() < receive_buffer_bytes(free).max()
        for name, a, b in zip(NAMES, known, run(plan, tensors), strict=True):
            assert torch.equal(a, b), (partitioner, name)


@pytest.mark.dist
def test_a_process_that_plans_ahead_makes_the_same_reproducible_plans():
    rows = [{"tokens": list(range(n))} for n in (600, 300, 700, 40)]
    options = {
        "token_budget": 900, "block_size": 64, "cluster": Cluster(devices_per_node=2),
        "shape": SHAPE, "config": PlanConfig("static:zigzag", reproducible=True), "rank": 0,
    }  # fmt: skip
    spec = Spec.from_text('mask m = causal\nfor "*" use m')
    here = [plan for _, plan in make_loader(rows, spec, **options)]
    with make_loader(rows, spec, processes=1, ahead=2, **options) as loader:
        ahead = [plan for _, plan in loader]
    assert [digest(plan) for plan in ahead] == [digest(plan) for plan in here]
    assert all(plan.shape.exact_sums for plan in ahead)


TRAINED_LENGTHS, HEADS = (520, 40), (2, 1, 1)


def train(steps):
    """Return the trained q, k and v of all tokens after some steps of two layers."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mask = Spec.from_text("mask plain = causal").mask("plain")
    masks = [mask.bind(Sample({}, n)) for n in TRAINED_LENGTHS]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(sum(TRAINED_LENGTHS), h, 16, generator=generator) for h in HEADS]
    target = torch.randn(sum(TRAINED_LENGTHS), 2, 16, generator=generator)
    config = PlanConfig("static:ring", reproducible=True)
    blocks = block_sparsity(masks, 256 * (1 + size % 2), 256 * (1 + size % 2))
    plan = build_plan(blocks, ModelShape(*HEADS[:2], 16, 4), Cluster(devices_per_node=size), config)
    rows = torch.tensor(plan.local_tokens(rank))
    trained = [x[rows].requires_grad_() for x in start]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    # The parameters of ranks differ by design: each holds its own tokens.
    with DCPExecutor(compare_parameters_every=None) as executor:
        for step in range(steps):
            prepared = executor.prepare(plan, step=step)
            q, k, v = trained
            out = DCPAttn.apply(prepared, q, (k, v))
            out = DCPAttn.apply(prepared, out + q, (k, v))
            ((out - target[rows]) ** 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [undispatch(x.detach(), plan) for x in trained]


def summed_in_order():
    """Return sums of gradients over the ranks, and what is refused."""
    model = torch.nn.Linear(4, 3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator) * 10.0 ** (3 * dist.get_rank())
    own = [p.grad.clone() for p in model.parameters()]
    sum_gradients(model, reproducible=True)
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    parallel(torch.ones(1, 4)).sum().backward()
    refused = ""
    try:
        sum_gradients(parallel, reproducible=True)
    except RunError as error:
        refused = str(error)
    return own, [p.grad for p in model.parameters()], refused


def main():
    """Train, sum, and write what was found."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    trained = train(steps)
    if rank == 0:
        torch.save(trained, folder / f"trained-{size}.pt")
    if size > 1:
        torch.save(summed_in_order(), folder / f"sums-{size}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
