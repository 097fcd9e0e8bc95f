"""`DCPExecutor` and `DCPAttn` as training loops use them, on loopback worlds."""

import re

import model_scenarios
import pytest
import torch

from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_planner.plan import decode_part, encode_parts
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.execute import interpreter
from dcp_runtime.transport import loopback
from dcp_runtime.transport.loopback import LoopbackWorld

RANKS = 3
SHAPE = ModelShape(4, 2, 8, 4)


def make(lab, mask, lengths, seed, shape=SHAPE, dtype=torch.float32, routing="direct"):
    masks = [lab.masks[mask](n) for n in lengths]
    config = PlanConfig(partitioner="static:zigzag", routing=routing)
    plan = build_plan(lab.sparsity_of(masks, 16), shape, Cluster(devices_per_node=RANKS), config)
    heads = shape.q_heads, shape.kv_heads, shape.head_dim
    dense = torch.block_diag(*map(torch.tensor, masks)).bool().numpy()
    return plan, lab.random_qkv(seed, sum(lengths), *heads, dtype), dense


@pytest.fixture(params=[2, 3])
def cases(lab, request):
    """Plans that share the ownership of tokens: of another's plan only the numbers would tell."""
    masks = ("causal", "scattered", "streaming")[: request.param]
    return [make(lab, mask, (70, 30), seed) for seed, mask in enumerate(masks, 1)]


def check(lab, cases, parts):
    """Put the ranks' results together, layer by layer, and compare them with dense attention."""
    assert parts[0]
    for layers in zip(*parts, strict=True):
        number = layers[0][0]
        _, qkv, dense = cases[number]
        whole = {}
        for name in ("out", "dq", "dkv"):
            like = qkv[1] if name == "dkv" else qkv[0]
            whole[name] = torch.full(like.shape, torch.nan, dtype=like.dtype)
            for same, rows, tensors in layers:
                assert same == number
                whole[name][rows] = tensors[name]
        lab.assert_as_exact_as_eager(whole, *qkv, dense)


def run(cases, scenario, ranks=RANKS, **options):
    plans = [(plan, qkv) for plan, qkv, _ in cases]
    world = LoopbackWorld(ranks, timeout_s=60)
    return world.run(lambda transport: scenario(transport, plans, **options))


@pytest.mark.parametrize("name", model_scenarios.SCENARIOS)
def test_training_loop(lab, cases, name):
    check(lab, cases, run(cases, model_scenarios.SCENARIOS[name]))


@pytest.mark.parametrize("wrap", model_scenarios.CHECKPOINTS)
def test_an_executor_that_a_checkpoint_asks_again_is_refused(cases, wrap):
    """By then the executor may hold another plan, and gradients would be wrong without a word."""
    scenario = model_scenarios.one_batch_at_a_time_by_the_executor_alone
    with pytest.raises(RunError, match=r"asked the executor for its plan inside a backward pass"):
        run(cases, scenario, wrap=model_scenarios.CHECKPOINTS[wrap])


def test_an_executor_is_refused_while_another_batch_waits_for_its_backward(cases):
    says = r"while prepared batch 1 \(waits for its backward\) and prepared batch 2 are open"

    def work(transport, plans):
        executor = DCPExecutor(transport=transport)
        executor.prepare(plans[0][0])
        first = model_scenarios.attend(executor, 0, plans[0], transport.rank)
        executor.prepare(plans[1][0])
        with pytest.raises(RunError, match=says):  # the second batch, or more of the first?
            model_scenarios.attend(executor, 1, plans[1], transport.rank)
        model_scenarios.finish(first)
        model_scenarios.finish(model_scenarios.attend(executor, 1, plans[1], transport.rank))

    run(cases, work)


def test_an_executor_is_refused_while_another_batch_waits_for_its_first_layer(cases):
    says = r"while prepared batch 1 \(waits for its first layer\) and prepared batch 2 are open"

    def work(transport, plans):
        executor = DCPExecutor(transport=transport, micro_batches=2)
        ready = [executor.prepare(plan) for plan, _ in plans[:2]]
        with pytest.raises(RunError, match=says):
            model_scenarios.attend(executor, 0, plans[0], transport.rank)
        for number, prepared in enumerate(ready):
            case = plans[number]
            model_scenarios.finish(model_scenarios.attend(prepared, number, case, transport.rank))

    run(cases, work)


def test_what_is_no_prepared_plan_is_refused(lab):
    def work(executor, q, kv, dout):
        with pytest.raises(RunError, match=r"expected a prepared plan, .* got Plan$"):
            DCPAttn.apply(executor.prepared.part.plan, q, kv)
        DCPAttn.apply(executor, q, kv)

    on_every_rank(make(lab, "causal", (60,), 6), work)


# The tracer itself looks at .grad of what it is given.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_model_is_one_graph_for_all_batches_and_gives_the_same(lab):
    # One rank: the compiler's own state is per process, not per thread.
    config, cases = PlanConfig(partitioner="static:zigzag"), []
    for seed, name in enumerate(["causal", "scattered"] * 5):
        mask = lab.masks[name](50)
        plan = build_plan(lab.sparsity_of([mask], 16), SHAPE, Cluster(devices_per_node=1), config)
        cases.append((plan, lab.random_qkv(seed, 50, 4, 2, 8, torch.float32), mask))
    torch._dynamo.reset()
    graphs = []
    check(lab, cases, run(cases, model_scenarios.compiled_whole, ranks=1, graphs=graphs))
    assert len(graphs) == 2  # forward and backward; another plan is no other program


def on_every_rank(case, work, **options):
    """Run ``work(executor, q, kv, dout)`` on every rank of a prepared plan."""
    plan, (q, kv, dout), _ = case

    def run(transport):
        executor = DCPExecutor(transport=transport, **options)
        executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        return work(executor, q[rows], kv[rows], dout[rows])

    return LoopbackWorld(RANKS).run(run)


def test_no_grad_gives_the_same_output_and_keeps_nothing(lab):
    case = make(lab, "streaming", (80,), 4)

    def work(executor, q, kv, dout):
        with torch.no_grad():
            out = DCPAttn.apply(executor, q.requires_grad_(), kv)
        assert out.grad_fn is None
        assert torch.equal(out, DCPAttn.apply(executor, q, kv).detach())

    on_every_rank(case, work)


def test_gradient_of_one_argument_is_enough(lab):
    case = make(lab, "causal", (100,), 5)

    def work(executor, q, kv, dout):
        kv_leaf = kv.clone().requires_grad_()
        DCPAttn.apply(executor, q, kv_leaf).backward(dout)
        both_q, both_kv = q.clone().requires_grad_(), kv.clone().requires_grad_()
        DCPAttn.apply(executor, both_q, both_kv).backward(dout)
        assert q.grad is None
        assert torch.equal(kv_leaf.grad, both_kv.grad)

    on_every_rank(case, work)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_autocast_computes_as_on_cast_tensors_and_gives_gradients_in_the_dtype_given(lab, kernel):
    case = make(lab, "causal", (100,), 6)

    def work(executor, q, kv, dout):
        q, kv = q.requires_grad_(), kv.requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = DCPAttn.apply(executor, q, kv)
            out.backward(dout.bfloat16())
        assert (out.dtype, q.grad.dtype, kv.grad.dtype) == (
            torch.bfloat16, torch.float32, torch.float32
        )  # fmt: skip
        cast = [x.detach().bfloat16().requires_grad_() for x in (q, kv)]
        executor.prepare(executor.prepared.part.plan)
        same = DCPAttn.apply(executor, *cast)
        same.backward(dout.bfloat16())
        assert torch.equal(out, same)
        assert torch.equal(q.grad, cast[0].grad.float())
        assert torch.equal(kv.grad, cast[1].grad.float())

    on_every_rank(case, work, kernel=kernel)


def test_autocast_leaves_float64_as_it_is(lab):
    case = make(lab, "causal", (60,), 6, dtype=torch.float64)

    def work(executor, q, kv, dout):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert DCPAttn.apply(executor, q, kv).dtype == torch.float64

    on_every_rank(case, work)


def test_a_second_derivative_is_refused(lab):
    case = make(lab, "causal", (60,), 6)

    def work(executor, q, kv, dout):
        out = DCPAttn.apply(executor, q.requires_grad_(), kv)
        (dq,) = torch.autograd.grad(out, q, dout.requires_grad_(), create_graph=True)
        with pytest.raises(RunError, match="differentiate it twice"):
            dq.sum().backward()

    on_every_rank(case, work)


def test_strided_and_expanded_gradients_are_taken(lab):
    case = make(lab, "streaming", (90,), 6)

    def work(executor, q, kv, dout):
        found = []
        for upper in (dout, dout.transpose(0, 2).contiguous().transpose(0, 2)):
            q_leaf, kv_leaf = q.clone().requires_grad_(), kv.clone().requires_grad_()
            DCPAttn.apply(executor, q_leaf, kv_leaf).backward(upper)
            found.append((q_leaf.grad, kv_leaf.grad))
        for first, second in zip(*found, strict=True):
            assert torch.equal(first, second)
        expanded = torch.ones(1).expand(dout.shape)
        q_leaf = q.clone().requires_grad_()
        DCPAttn.apply(executor, q_leaf, kv).backward(expanded)
        same = q.clone().requires_grad_()
        DCPAttn.apply(executor, same, kv).backward(expanded.contiguous())
        assert torch.equal(q_leaf.grad, same.grad)

    on_every_rank(case, work)


def test_results_do_not_keep_the_buffers_of_other_ranks_blocks(lab):
    case = make(lab, "full", (120,), 6)

    def work(executor, q, kv, dout):
        prepared = executor.prepared
        out, lse = prepared.forward(q, kv)
        dq, dkv = prepared.backward(q, kv, out, lse, dout)
        for result in (out, lse, dq, dkv):
            assert result.untyped_storage().nbytes() == result.nbytes

    on_every_rank(case, work)


def test_half_precision_gradients_do_not_overflow_in_delta(lab):
    # As under loss scaling: dout * out is far beyond 65504, every result is not.
    plan, (q, kv, dout), _ = make(lab, "causal", (40,), 6, dtype=torch.float16)
    kv[:, 1], dout = 30.0, torch.full_like(dout, 4e3)

    def work(executor, q, kv, dout):
        out, lse = executor.prepared.forward(q, kv)
        dq, dkv = executor.prepared.backward(q, kv, out, lse, dout)
        assert torch.isfinite(dq).all()
        assert torch.isfinite(dkv).all()

    on_every_rank((plan, (q, kv, dout), None), work)


def test_two_runs_give_the_same_bits(lab):
    case = make(lab, "scattered", (90,), 7)

    def work(executor, q, kv, dout):
        q, kv = q.requires_grad_(), kv.requires_grad_()
        out = DCPAttn.apply(executor, q, kv)
        return [out.detach(), *torch.autograd.grad(out, (q, kv), dout)]

    for first, second in zip(on_every_rank(case, work), on_every_rank(case, work), strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, kv: (q[:-1], kv), r"expected q \[\d+, 4, 8\] .*take the rows"),
        (
            lambda q, kv: (q.repeat(1, 2, 1), kv),
            r"ModelShape\(q_heads=8, kv_heads=2, head_dim=8\)",
        ),
        (lambda q, kv: (q.double(), kv), "share dtype and device, got torch.float64 on cpu"),
        (lambda q, kv: (q, kv.to("meta")), "got torch.float32 on cpu and torch.float32 on meta"),
        (lambda q, kv: (q.int(), kv.int()), "needs floating-point"),
        (lambda q, kv: (q.double(), kv.double()), "another kind of tensors than rank 0"),
    ],
)
def test_wrong_tensors_on_one_rank_are_an_error_on_all_that_names_it(lab, change, says):
    plan, (q, kv, _), _ = make(lab, "causal", (100,), 8)
    raised = {}

    def run(transport):
        executor = DCPExecutor(transport=transport)
        executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        mine = (q[rows], kv[rows]) if transport.rank != 1 else change(q[rows], kv[rows])
        with pytest.raises(RunError, match=says) as caught:
            DCPAttn.apply(executor, *mine)
        raised[transport.rank] = caught.value
        # Nothing is under way: with right tensors the same executor goes on.
        DCPAttn.apply(executor, q[rows], kv[rows])

    LoopbackWorld(RANKS, timeout_s=60).run(run)
    assert [raised[rank].rank for rank in (0, 2)] == [1, 1]


def test_who_could_not_go_on_is_said_as_such(lab):
    plan, (q, kv, _), _ = make(lab, "causal", (100,), 8)

    def work(executor, q, kv, dout):
        short = slice(-1 if executor.rank == 2 else None)
        with pytest.raises(RunError) as caught:
            DCPAttn.apply(executor, q[short], kv)
        assert (caught.value.rank == 2) == (executor.rank != 2)
        return str(caught.value)

    first, second, own = on_every_rank((plan, (q, kv, q), None), work)
    assert first == second == f"rank 2 failed in the first layer: {own}"


def test_of_two_ranks_that_differ_the_first_is_believed(lab):
    config, cluster = PlanConfig(partitioner="static:zigzag"), Cluster(devices_per_node=2)
    plans = [
        build_plan(lab.sparsity_of([lab.masks[name](50)], 16), SHAPE, cluster, config)
        for name in ("full", "causal")
    ]

    def run(transport):
        with pytest.raises(RunError, match="rank 1 has another plan digest than rank 0") as caught:
            DCPExecutor(transport=transport).prepare(plans[transport.rank])
        assert caught.value.rank == 1

    LoopbackWorld(2, timeout_s=60).run(run)


def test_the_part_of_another_rank_is_refused(lab):
    plan, *_ = make(lab, "causal", (60,), 8)
    parts = [decode_part(data) for data in encode_parts(plan)]

    def run(transport):
        executor = DCPExecutor(transport=transport)
        turned = parts[(transport.rank + 1) % RANKS]
        with pytest.raises(RunError, match=r"expected the part of rank \d, got that of"):
            executor.prepare(turned)
        executor.prepare(parts[transport.rank])

    LoopbackWorld(RANKS, timeout_s=60).run(run)


def test_the_clock_of_the_plan_before_goes_on(lab):
    plan, *_ = make(lab, "causal", (60,), 8)

    def run(transport):
        executor = DCPExecutor(transport=transport, micro_batches=2)
        first = executor.prepare(plan).recorder
        assert executor.prepare(plan).recorder.clock is first.clock

    LoopbackWorld(RANKS, timeout_s=60).run(run)


def test_a_wrong_gradient_on_one_rank_is_an_error_on_all(lab):
    case = make(lab, "full", (100,), 8)

    def work(executor, q, kv, dout):
        prepared = executor.prepared
        out, lse = prepared.forward(q, kv)
        prepared.backward(q, kv, out, lse, dout[1:] if executor.rank == 1 else dout)

    says = r"rank 1 failed in division 0 of backward: rank 1: expected dout as out"
    with pytest.raises(RunError, match=says) as caught:
        on_every_rank(case, work)
    assert caught.value.rank == 1


def test_another_plan_on_one_rank_is_an_error_on_all_that_names_it(lab):
    plan, other = (make(lab, mask, (100,), 9)[0] for mask in ("causal", "full"))

    def run(transport):
        executor = DCPExecutor(transport=transport)
        with pytest.raises(RunError, match="rank 2 has another plan digest than rank 0") as caught:
            executor.prepare(other if transport.rank == 2 else plan)
        assert caught.value.rank == 2
        executor.prepare(plan)

    LoopbackWorld(RANKS, timeout_s=60).run(run)


def test_wrong_tensors_in_a_later_layer_are_an_error_on_all(lab):
    plan, (q, kv, _), _ = make(lab, "full", (100,), 10)

    def run(transport):
        executor = DCPExecutor(transport=transport)
        executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        DCPAttn.apply(executor, q[rows], kv[rows])
        late = q[rows].double() if transport.rank == 1 else q[rows]
        DCPAttn.apply(executor, late, kv[rows].to(late.dtype))

    with pytest.raises(RunError, match="rank 1 failed in division 0 of forward: all layers") as e:
        LoopbackWorld(RANKS, timeout_s=60).run(run)
    assert (e.value.rank, e.value.division) == (1, 0)


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_rank_that_never_ends_is_named_within_the_timeout(lab, monkeypatch, lockstep):
    import threading

    monkeypatch.setattr("dcp_runtime.transport.loopback.GRACE_S", 0.0)  # nothing comes in it
    plan, (q, kv, _), _ = make(lab, "full", (100,), 11)
    never = threading.Event()

    def run(transport):
        executor = DCPExecutor(transport=transport)
        executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        if transport.rank == 1:
            never.wait()
        DCPAttn.apply(executor, q[rows], kv[rows])

    with pytest.raises(RunError, match="rank 1 is dead or stalled") as caught:
        LoopbackWorld(RANKS, timeout_s=1, lockstep=lockstep).run(run)
    assert caught.value.rank == 1
    never.set()


def test_nan_is_found_where_it_came_from(lab):
    plan, (q, kv, _), _ = make(lab, "full", (100,), 12)
    kv = kv.clone()
    kv[plan.local_tokens(1)[0]] = torch.nan

    def run(transport):
        executor = DCPExecutor(transport=transport, check_finite=True)
        executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        DCPAttn.apply(executor, q[rows], kv[rows])

    with pytest.raises(RunError, match=r"rank 1 sent kv|rank 1: out has") as caught:
        LoopbackWorld(RANKS, timeout_s=60).run(run)
    assert caught.value.rank is not None


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_result_that_is_not_finite_is_an_error_on_all(lab, direction):
    # Queries stay at home with these plans: only the results of rank 1 show it.
    plan, (q, kv, dout), _ = make(lab, "full", (100,), 12)
    (q if direction == "forward" else dout)[plan.local_tokens(1)[0]] = torch.nan
    said = {}

    def run(transport):
        executor = DCPExecutor(transport=transport, check_finite=True)
        prepared = executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        try:
            for _ in range(2):  # others hear of it when they next wait for rank 1
                out, lse = prepared.forward(q[rows], kv[rows])
                prepared.backward(q[rows], kv[rows], out, lse, dout[rows])
        except RunError as error:
            said[transport.rank] = error
            raise

    with pytest.raises(RunError):
        LoopbackWorld(RANKS, timeout_s=60).run(run)
    says = {"forward": "rank 1: out has", "backward": "rank 1: dq has|rank 1 sent dkv"}[direction]
    for rank in range(RANKS):
        assert said[rank].rank == 1
        assert re.search(says, str(said[rank]))


def test_a_message_that_is_never_written_is_found(lab, monkeypatch):
    plan, (q, kv, _), _ = make(lab, "full", (100,), 12)
    monkeypatch.setattr(loopback, "_deliver", lambda tensors, receiver: receiver.finish())
    # What memory held before must not pass for a message.
    monkeypatch.setattr(
        interpreter,
        "working_buffer",
        lambda own, rows: own.new_zeros(len(own) + rows, *own.shape[1:]),
    )

    def run(transport):
        executor = DCPExecutor(transport=transport, check_finite=True)
        prepared = executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        prepared.forward(q[rows], kv[rows])

    with pytest.raises(RunError, match=r"rank \d sent kv \d+ with NaN"):
        LoopbackWorld(RANKS, timeout_s=60).run(run)


def test_one_rank_needs_no_other(lab):
    masks = [lab.masks["streaming"](64)]
    plan = build_plan(
        lab.sparsity_of(masks, 16), SHAPE, Cluster(devices_per_node=1), PlanConfig("static:zigzag")
    )
    qkv = lab.random_qkv(13, 64, 4, 2, 8, torch.float32)
    got, _ = lab.run_in_threads(plan, *qkv)
    lab.assert_as_exact_as_eager(got, *qkv, masks[0])
