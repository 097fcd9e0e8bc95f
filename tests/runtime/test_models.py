"""`DCPExecutor` and `DCPAttn` as training loops use them, on loopback worlds."""

import re
import threading

import model_scenarios
import pytest
import torch

from dcp_planner.plan import decode_part, encode_parts
from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.execute import passes
from dcp_runtime.transport import loopback
from dcp_runtime.transport.loopback import LoopbackWorld

RANKS = 3


def make(lab, mask, lengths, seed, dtype=torch.float32):
    masks = [lab.MASKS[mask](n) for n in lengths]
    plan = lab.plan_of(masks, RANKS)
    dense = torch.block_diag(*map(torch.tensor, masks)).bool().numpy()
    return plan, lab.random_qkv(seed, sum(lengths), 4, 2, 8, dtype), dense


def cases_of(lab, count=2):
    """Plans that share the ownership of tokens: of another's plan only the numbers would tell."""
    masks = ("causal", "scattered", "streaming")[:count]
    return [make(lab, mask, (70, 30), seed) for seed, mask in enumerate(masks, 1)]


def check(lab, cases, parts):
    """Put the ranks' results together, layer by layer, and compare them with dense attention."""
    assert parts[0]
    for layers in zip(*parts, strict=True):
        number = layers[0][0]
        _, qkv, dense = cases[number]
        assert {same for same, *_ in layers} == {number}
        whole = lab.whole_of([own for _, *own in layers], len(dense))
        lab.assert_as_exact_as_eager(whole, *qkv, dense)


def run(cases, scenario, ranks=RANKS, **options):
    plans = [(plan, qkv) for plan, qkv, _ in cases]
    world = LoopbackWorld(ranks, timeout_s=60)
    return world.run(lambda transport: scenario(transport, plans, **options))


def on_every_rank(case, work, timeout_s=60.0, *, lockstep=False, **options):
    """Run ``work(executor, q, kv, dout)`` on every rank of a prepared plan."""
    plan, qkv, _ = case

    def run(transport):
        executor = DCPExecutor(transport=transport, **options)
        executor.prepare(plan)
        rows = torch.tensor(plan.local_tokens(transport.rank))
        return work(executor, *(x[rows] for x in qkv))

    return LoopbackWorld(plan.num_devices, timeout_s, lockstep=lockstep).run(run)


@pytest.mark.parametrize("name", model_scenarios.SCENARIOS)
def test_training_loop(lab, name):
    cases = cases_of(lab, 3)
    check(lab, cases, run(cases, model_scenarios.SCENARIOS[name]))


@pytest.mark.parametrize("wrap", model_scenarios.CHECKPOINTS)
def test_an_executor_that_a_checkpoint_asks_again_is_refused(lab, wrap):
    """By then the executor may hold another plan, and gradients would be wrong without a word."""
    scenario = model_scenarios.one_batch_at_a_time_by_the_executor_alone
    with pytest.raises(RunError, match=r"asked the executor for its plan inside a backward pass"):
        run(cases_of(lab), scenario, wrap=model_scenarios.CHECKPOINTS[wrap])


def test_an_executor_is_refused_while_another_batch_waits_for_its_backward(lab):
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

    run(cases_of(lab), work)


def test_an_executor_is_refused_while_another_batch_waits_for_its_first_layer(lab):
    says = r"while prepared batch 1 \(waits for its first layer\) and prepared batch 2 are open"

    def work(transport, plans):
        executor = DCPExecutor(transport=transport, micro_batches=2)
        ready = [executor.prepare(plan) for plan, _ in plans]
        with pytest.raises(RunError, match=says):
            model_scenarios.attend(executor, 0, plans[0], transport.rank)
        for number, prepared in enumerate(ready):
            case = plans[number]
            model_scenarios.finish(model_scenarios.attend(prepared, number, case, transport.rank))

    run(cases_of(lab), work)


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
    cases = []
    for seed, name in enumerate(["causal", "scattered"] * 5):
        mask = lab.MASKS[name](50)
        cases.append((lab.plan_of([mask]), lab.random_qkv(seed, 50, 4, 2, 8, torch.float32), mask))
    torch._dynamo.reset()
    graphs = []
    check(lab, cases, run(cases, model_scenarios.compiled_whole, ranks=1, graphs=graphs))
    assert len(graphs) == 2  # forward and backward; another plan is no other program


def test_no_grad_gives_the_same_output_and_keeps_nothing(lab):
    def work(executor, q, kv, dout):
        with torch.no_grad():
            out = DCPAttn.apply(executor, q.requires_grad_(), kv)
        assert out.grad_fn is None
        assert torch.equal(out, DCPAttn.apply(executor, q, kv).detach())

    on_every_rank(make(lab, "streaming", (80,), 4), work)


def gradients_of(executor, q, kv, dout):
    """Gradients of new leaves."""
    leaves = q.clone().requires_grad_(), kv.clone().requires_grad_()
    DCPAttn.apply(executor, *leaves).backward(dout)
    return [leaf.grad for leaf in leaves]


def test_gradient_of_one_argument_is_enough(lab):
    def work(executor, q, kv, dout):
        leaf = kv.clone().requires_grad_()
        DCPAttn.apply(executor, q, leaf).backward(dout)
        assert q.grad is None
        assert torch.equal(leaf.grad, gradients_of(executor, q, kv, dout)[1])

    on_every_rank(make(lab, "causal", (100,), 5), work)


@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_autocast_computes_as_on_cast_tensors_and_gives_gradients_in_the_dtype_given(lab, kernel):
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

    on_every_rank(make(lab, "causal", (100,), 6), work, kernel=kernel)


def test_autocast_leaves_float64_as_it_is(lab):
    def work(executor, q, kv, dout):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert DCPAttn.apply(executor, q, kv).dtype == torch.float64

    on_every_rank(make(lab, "causal", (60,), 6, dtype=torch.float64), work)


def test_a_second_derivative_is_refused(lab):
    def work(executor, q, kv, dout):
        out = DCPAttn.apply(executor, q.requires_grad_(), kv)
        (dq,) = torch.autograd.grad(out, q, dout.requires_grad_(), create_graph=True)
        with pytest.raises(RunError, match="differentiate it twice"):
            dq.sum().backward()

    on_every_rank(make(lab, "causal", (60,), 6), work)


def test_strided_and_expanded_gradients_are_taken(lab):
    def work(executor, q, kv, dout):
        strided, one = dout.transpose(0, 2).contiguous().transpose(0, 2), torch.ones(1)
        for given in (strided, one.expand(dout.shape)):
            found, wanted = (
                gradients_of(executor, q, kv, each) for each in (given, given.contiguous())
            )
            assert all(map(torch.equal, found, wanted))

    on_every_rank(make(lab, "streaming", (90,), 6), work)


def test_results_do_not_keep_the_buffers_of_other_ranks_blocks(lab):
    def work(executor, q, kv, dout):
        prepared = executor.prepared
        out, lse = prepared.forward(q, kv)
        dq, dkv = prepared.backward(q, kv, out, lse, dout)
        for result in (out, lse, dq, dkv):
            assert result.untyped_storage().nbytes() == result.nbytes

    on_every_rank(make(lab, "full", (120,), 6), work)


def test_half_precision_gradients_do_not_overflow_in_delta(lab):
    # As under loss scaling: dout * out is far beyond 65504, every result is not.
    plan, (q, kv, dout), _ = make(lab, "causal", (40,), 6, dtype=torch.float16)
    kv[:, 1], dout = 30.0, torch.full_like(dout, 4e3)

    def work(executor, q, kv, dout):
        assert all(torch.isfinite(found).all() for found in gradients_of(executor, q, kv, dout))

    on_every_rank((plan, (q, kv, dout), None), work)


def test_two_runs_give_the_same_bits(lab):
    case = make(lab, "scattered", (90,), 7)

    def work(executor, q, kv, dout):
        return [DCPAttn.apply(executor, q, kv), *gradients_of(executor, q, kv, dout)]

    for first, second in zip(on_every_rank(case, work), on_every_rank(case, work), strict=True):
        assert all(map(torch.equal, first, second))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, kv: (q[:-1], kv), r"expected q \[\d+, 4, 8\] .*take the rows"),
        (lambda q, kv: (q.repeat(1, 2, 1), kv), r"ModelShape\(q_heads=8, kv_heads=2, head_dim=8\)"),
        (lambda q, kv: (q.double(), kv), "share dtype and device, got torch.float64 on cpu"),
        (lambda q, kv: (q, kv.to("meta")), "got torch.float32 on cpu and torch.float32 on meta"),
        (lambda q, kv: (q.int(), kv.int()), "needs floating-point"),
        (lambda q, kv: (q.double(), kv.double()), "another kind of tensors than rank 0"),
    ],
)
def test_wrong_tensors_on_one_rank_are_an_error_on_all_that_names_it(lab, change, says):
    def work(executor, q, kv, dout):
        with pytest.raises(RunError, match=says) as caught:
            DCPAttn.apply(executor, *(change(q, kv) if executor.rank == 1 else (q, kv)))
        # Nothing is under way: with right tensors the same executor goes on.
        DCPAttn.apply(executor, q, kv)
        return str(caught.value), caught.value.rank

    first, own, last = on_every_rank(make(lab, "causal", (100,), 8), work)
    assert first == last
    assert first[1] == 1
    # Where all see it, all say the same; else the others say that this rank could not go on.
    assert first in (own, (f"rank 1 failed in the first layer: {own[0]}", 1))


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
    def work(executor, *_):
        first = executor.prepared
        assert executor.prepare(first.part.plan).recorder.clock is first.recorder.clock

    on_every_rank(make(lab, "causal", (60,), 8), work, micro_batches=2)


def test_a_wrong_gradient_on_one_rank_is_an_error_on_all(lab):
    def work(executor, q, kv, dout):
        prepared = executor.prepared
        out, lse = prepared.forward(q, kv)
        prepared.backward(q, kv, out, lse, dout[1:] if executor.rank == 1 else dout)

    says = r"rank 1 failed in division 0 of backward: rank 1: expected dout as out"
    with pytest.raises(RunError, match=says) as caught:
        on_every_rank(make(lab, "full", (100,), 8), work)
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
    def work(executor, q, kv, dout):
        DCPAttn.apply(executor, q, kv)
        late = q.double() if executor.rank == 1 else q
        DCPAttn.apply(executor, late, kv.to(late.dtype))

    says = "rank 1 failed in division 0 of forward: all layers .* got torch.float64 on cpu"
    with pytest.raises(RunError, match=says) as e:
        on_every_rank(make(lab, "full", (100,), 10), work)
    assert (e.value.rank, e.value.division) == (1, 0)


@pytest.mark.parametrize("lockstep", [False, True])
def test_a_rank_that_never_ends_is_named_within_the_timeout(lab, monkeypatch, lockstep):
    monkeypatch.setattr("dcp_runtime.transport.loopback.GRACE_S", 0.0)  # nothing comes in it
    never = threading.Event()

    def work(executor, q, kv, dout):
        if executor.rank == 1:
            never.wait()
        DCPAttn.apply(executor, q, kv)

    with pytest.raises(RunError, match="rank 1 is dead or stalled") as caught:
        on_every_rank(make(lab, "full", (100,), 11), work, timeout_s=1, lockstep=lockstep)
    assert caught.value.rank == 1
    never.set()


@pytest.mark.parametrize(
    ("direction", "says"),
    [("forward", "rank 1: out has"), ("backward", "rank 1: dq has|rank 1 sent dkv")],
)
def test_a_result_that_is_not_finite_is_an_error_on_all(lab, direction, says):
    # Queries stay at home with these plans: only the results of rank 1 show it.
    plan, (q, kv, dout), _ = make(lab, "full", (100,), 12)
    (q if direction == "forward" else dout)[plan.local_tokens(1)[0]] = torch.nan
    said = {}

    def work(executor, q, kv, dout):
        try:
            for _ in range(2):  # others hear of it when they next wait for rank 1
                gradients_of(executor, q, kv, dout)
        except RunError as error:
            said[executor.rank] = error
            raise

    with pytest.raises(RunError):
        on_every_rank((plan, (q, kv, dout), None), work, check_finite=True)
    for rank in range(RANKS):
        assert said[rank].rank == 1
        assert re.search(says, str(said[rank]))


def test_a_message_that_is_never_written_is_found(lab, monkeypatch):
    monkeypatch.setattr(loopback, "_deliver", lambda tensors, receiver: receiver.finish())
    # What memory held before must not pass for a message.
    monkeypatch.setattr(
        passes,
        "working_buffer",
        lambda own, rows: own.new_zeros(len(own) + rows, *own.shape[1:]) if rows else None,
    )

    def work(executor, q, kv, dout):
        executor.prepared.forward(q, kv)

    with pytest.raises(RunError, match=r"rank \d sent kv \d+ with NaN"):
        on_every_rank(make(lab, "full", (100,), 12), work, check_finite=True)
