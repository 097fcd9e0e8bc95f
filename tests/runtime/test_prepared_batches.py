"""Batches that an executor prepares: a plan that nothing ran, a rank that skipped one."""

import math
import re
import warnings
from functools import cache
from pkgutil import resolve_name

import numpy as np
import pytest
import torch
from loader_options import Stream, make_loader

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.plan import decode_part, encode_parts
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, RunError
from dcp_runtime.data.make_plans import plan_request
from dcp_runtime.errors import PeerError
from dcp_runtime.plans.batch_plans import batch_note
from dcp_runtime.transport.loopback import LoopbackWorld

RANKS, HEADS = 3, (2, 1, 4)
SPEC = Spec.from_text("mask band = causal and q - k < 9\nstack mixed = 2 of band, causal\n")
ROWS = [{"tokens": [row] * 24} for row in range(4)]  # of one length: all batches have equal plans
STACK = SPEC.stack("mixed")
UNUSED = r"of the 2 masks of epoch 0, batch {}, no layer ran `{}`: does every layer ask for its own"
UNRUN = r"no layer ran the plan of {}, so no layer attended under its mask: does the model use this"


def load(rank, mask=None, rows=ROWS, **options):
    return make_loader(
        rows, mask or SPEC.mask("band"), rank=rank, token_budget=24, shape=ModelShape(*HEADS, 4),
        block_size=8, cluster=Cluster(devices_per_node=RANKS), config=PlanConfig("static:zigzag"),
        **options,
    )  # fmt: skip


@cache
def plans(mask=None):
    """Return the plans that the loaders of all ranks yield, made once."""
    return tuple(plan for _, plan in load(0, mask))


def attend(prepared, plan, rank):
    q_heads, kv_heads, dim = HEADS
    tokens = len(plan.local_tokens(rank))
    q = torch.ones(tokens, q_heads, dim, requires_grad=True)
    return DCPAttn.apply(prepared, q, torch.ones(tokens, 2, kv_heads, dim))


def on_ranks(work, mask=None, timeout_s=60.0, **options):
    def run(transport):
        return work(DCPExecutor(transport=transport, **options), plans(mask))

    return LoopbackWorld(RANKS, timeout_s).run(run)


def test_a_plan_that_nothing_ran_is_named_by_the_next_prepare():
    def work(executor, batches):
        attend(executor.prepare(batches[0]), batches[0], executor.rank)
        executor.prepare(batches[1])
        with pytest.raises(RunError, match=UNRUN.format("epoch 0, batch 1")):
            executor.prepare(batches[2])
        with pytest.raises(RunError, match="no plan is prepared"):
            attend(executor, batches[2], executor.rank)
        # It was said once; nothing is under way, and the executor goes on.
        attend(executor.prepare(batches[2]), batches[2], executor.rank)
        executor.close()

    on_ranks(work)


def one_rank_goes_on(executor, prepared, batches):
    """The model of rank 1 does not use this attention."""
    if executor.rank == 1:
        executor.prepare(batches[1])
    else:
        attend(prepared, batches[0], executor.rank)


def test_a_plan_that_one_rank_did_not_run_is_named_on_all():
    def work(executor, batches):
        prepared = executor.prepare(batches[0])
        with pytest.raises(RunError) as caught:
            one_rank_goes_on(executor, prepared, batches)
        return str(caught.value)

    first, own, last = on_ranks(work)
    assert own.startswith("no layer ran the plan of epoch 0, batch 0")
    assert first == last == f"rank 1 failed in the first layer: {own}"


def fail():
    raise ValueError("the model failed before its first layer")


def test_a_batch_that_is_prepared_while_an_error_is_handled_is_the_way_on():
    def work(executor, batches):
        executor.prepare(batches[0])
        try:
            fail()
        except ValueError:
            prepared = executor.prepare(batches[1])
        attend(prepared, batches[1], executor.rank)
        executor.close()

    on_ranks(work)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("executor.prepare_device", "prepare"),
        ("prepared_plan.ForwardPass", "division 0 of forward"),
        ("prepared_plan.BackwardPass", "division 0 of backward"),
    ],
)
def test_any_error_of_a_rank_is_told_to_all(monkeypatch, name, place):
    path = f"dcp_runtime.execute.{name}"
    made = resolve_name(path)

    def make(*arguments):
        if getattr(arguments[0], "device", arguments[1]) == 1:  # of a part, or a plan's device
            raise MemoryError("no room")
        return made(*arguments)

    monkeypatch.setattr(path, make)

    def work(executor, batches):
        says = "no room" if executor.rank == 1 else f"rank 1 failed in {place}: MemoryError: no"
        error = MemoryError if executor.rank == 1 else RunError
        with pytest.raises(error, match=says), executor:  # the block says no more of it
            attend(executor.prepare(batches[0]), batches[0], executor.rank).sum().backward()

    on_ranks(work, timeout_s=6.0)


def test_a_layer_that_failed_has_tried():
    def work(executor, batches):
        prepared = executor.prepare(batches[0])
        with pytest.raises(RunError, match="expected q"):
            DCPAttn.apply(prepared, torch.ones(99, 2, 4), torch.ones(99, 2, 1, 4))
        attend(executor.prepare(batches[1]), batches[1], executor.rank)
        executor.close()

    on_ranks(work)


def test_evaluation_and_ranks_without_tokens_raise_no_alarm():
    ((_, short),) = load(0, rows=[{"tokens": [1, 2, 3]}])

    assert {len(short.local_tokens(rank)) for rank in range(RANKS)} == {0, 3}

    def work(executor, batches):
        for plan in (short, *batches):
            prepared = executor.prepare(plan)
            with torch.no_grad():
                attend(prepared, plan, executor.rank)
        executor.close()

    on_ranks(work)


def test_a_stack_is_run_when_one_of_its_plans_is():
    def work(executor, batches):
        first, second, *_ = batches
        with pytest.raises(RunError, match=r"expected one Plan, got 2 of a stack; .*LayerPlans"):
            executor.prepare(first)
        layers = LayerPlans.prepare(executor, first)
        with pytest.raises(RunError, match=r"holds 2 plans of epoch 0, batch 0, one per mask"):
            attend(executor, first, executor.rank)
        attend(layers.of(0), first, executor.rank)  # a model of fewer layers than the cycle has
        LayerPlans.prepare(executor, second)
        with pytest.raises(RunError, match=UNRUN.format("epoch 0, batch 1")):
            executor.close()

    with pytest.warns(UserWarning, match=UNUSED.format(0, "causal")):
        on_ranks(work, STACK)


@pytest.mark.parametrize("asked", [(0, 0, 0), (2, 2, 2), (0, 1, 2)])
def test_a_mask_that_no_layer_ran_is_named_once(asked):
    """A model whose layers all ask for one plan: its other masks would be left out silently."""

    def work(executor, batches):
        for plan in batches:
            layers = LayerPlans.prepare(executor, plan)
            sum(attend(layers.of(n), plan, executor.rank).sum() for n in asked).backward()
        executor.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        on_ranks(work, STACK)
    found = [str(each.message) for each in caught]
    unused = {(0, 0, 0): "causal", (2, 2, 2): "band"}.get(asked)
    assert len(found) == (unused is not None)
    assert all(re.match(UNUSED.format(0, unused), text) for text in found)


def test_a_mask_that_no_layer_of_the_last_batch_ran_is_named_by_close():
    def work(executor, batches):
        attend(LayerPlans.prepare(executor, batches[3]).of(0), batches[3], executor.rank)
        executor.close()

    with pytest.warns(UserWarning, match=UNUSED.format(3, "causal")):
        on_ranks(work, STACK)


def test_a_pipeline_prepares_its_micro_batches_first():
    def work(executor, batches):
        ready = [executor.prepare(plan) for plan in batches[:2]]
        with pytest.raises(RunError, match=UNRUN.format("epoch 0, batch 0")):
            executor.prepare(batches[2])
        for prepared, plan in zip(ready, batches, strict=False):
            attend(prepared, plan, executor.rank)
        executor.close()

    on_ranks(work, micro_batches=2)
    for wrong in (0, -1, "2", 1.5):
        with pytest.raises(RunError, match="expected micro_batches to be at least 1, got"):
            on_ranks(work, micro_batches=wrong)


SKIPPED = (
    "rank 1 has another batch of the data loader than rank 0 in prepare: expected epoch 0, batch "
    "1, got epoch 0, batch 2; every rank prepares every batch that its loader yields, in order, "
    "and all loaders resume from the same state"
)


@pytest.mark.parametrize(
    ("mask", "prepare"),
    [
        (None, DCPExecutor.prepare),
        (None, lambda e, plan: LayerPlans.prepare(e, plan).of(0)),
        (STACK, lambda e, plan: LayerPlans.prepare(e, plan).of(0)),
    ],
    ids=["a plan", "a plan for all layers", "a stack"],
)
def test_a_rank_that_skipped_a_batch_is_named_at_once_on_all(mask, prepare):
    """Rank 1 leaves out batch 1; all plans are equal, so that it runs what the others run."""

    def work(executor, batches):
        for number, plan in enumerate(batches):
            if executor.rank == 1 and number == 1:
                continue
            try:
                prepared = prepare(executor, plan)
            except RunError as error:
                executor.close()
                return str(error), error.rank, number
            attend(prepared, plan, executor.rank)

    said = on_ranks(work, mask)
    assert said == [(SKIPPED, 1, 1), (SKIPPED, 1, 2), (SKIPPED, 1, 1)]


def test_a_rank_that_skipped_a_plan_made_by_hand_is_named_at_once_by_its_step():
    by_hand = [decode_part(part) for part in encode_parts(plans()[0])]
    says = "rank 1 has another batch .* than rank 0 in prepare: expected step 1, got step 2"

    def work(executor, _):
        plan = by_hand[executor.rank]
        with executor:
            attend(executor.prepare(plan, step=0), plan, executor.rank)
            with pytest.raises(RunError, match=says):
                executor.prepare(plan, step=2 if executor.rank == 1 else 1)

    on_ranks(work)


def prepare_and_fail(executor, plan):
    with executor:
        executor.prepare(plan)
        fail()


def test_executors_close_where_their_block_ends():
    def work(executor, batches):
        with pytest.raises(RunError, match=UNRUN.format("epoch 0, batch 3")), executor:
            executor.prepare(batches[3])
        executor.close()  # it was said once

    def fails(executor, batches):
        with pytest.raises(ValueError, match="the model failed"):
            prepare_and_fail(executor, batches[2])

    on_ranks(work)
    on_ranks(fails)


@pytest.mark.parametrize("is_in_step", [True, False], ids=["prepare", "layer"])
def test_an_error_inside_the_block_of_one_rank_is_told_to_all_at_once(is_in_step):
    def train(executor, batches):
        with executor:
            for number, plan in enumerate(batches[:2]):
                if is_in_step and number and executor.rank == 1:
                    fail()
                prepared = executor.prepare(plan)
                out = attend(prepared, plan, executor.rank)
                if not is_in_step and executor.rank == 1:
                    fail()
                out.sum().backward()

    def work(executor, batches):
        says = "the model failed before its first layer"
        if executor.rank != 1:
            says = f"^rank 1 failed in the code around its layers: ValueError: {says}$"
        with pytest.raises(ValueError if executor.rank == 1 else PeerError, match=says):
            train(executor, batches)

    on_ranks(work, timeout_s=6.0)


def test_interrupts_and_what_all_know_are_not_told():
    def work(executor, _):
        for error in (KeyboardInterrupt(), SystemExit(), PeerError("rank 2 is dead")):
            executor.__exit__(type(error), error, None)
        return executor._transport._failures.is_marked()

    assert on_ranks(work) == [False] * RANKS


def test_loaders_close_where_their_block_ends():
    with load(0, processes=1) as loader:
        next(iter(loader))
        pool = loader._plans.pool
    assert pool.is_closed


def test_ranks_in_step_agree_over_epochs_and_resumed_loaders():
    def work(executor, _):
        loader = load(executor.rank)
        state, names = loader.state_dict(), []
        for plan in [plan for _ in range(2) for _, plan in loader]:
            attend(executor.prepare(plan), plan, executor.rank)
            names.append(batch_note(plan).name)
        again = load(executor.rank)
        again.load_state_dict({**state, "epoch": 1, "step": 3})
        names += [batch_note(plan).name for _, plan in again]
        executor.close()
        return names

    names = [f"epoch {epoch}, batch {batch}" for epoch in (0, 1) for batch in range(4)]
    assert on_ranks(work) == [[*names, names[-1]]] * RANKS


def test_a_plan_made_by_hand_agrees_with_one_that_a_loader_yielded():
    by_hand = encode_parts(plans()[0])  # as one rank that plans would send them

    def work(executor, batches):
        plan = batches[1] if executor.rank == 0 else decode_part(by_hand[executor.rank])
        attend(executor.prepare(plan), plan, executor.rank)
        executor.close()

    on_ranks(work)


@pytest.mark.parametrize(
    ("step", "go_on"),
    [
        ("the first layer", one_rank_goes_on),
        ("gathering the trace", lambda executor, *_: executor.gather_timeline()),
    ],
)
def test_ranks_at_different_steps_are_told_so(step, go_on):
    def work(executor, batches):
        prepared = executor.prepare(batches[0])
        says = f"rank 1 has another step than rank 0 in .*: expected {step}, got prepare"
        call = one_rank_goes_on if executor.rank == 1 else go_on
        with pytest.raises(RunError, match=says):
            call(executor, prepared, batches)

    on_ranks(work, micro_batches=2)


def data_of(rank, kind):
    """Return rows and options of a rank; those of rank 1 differ, but for their lengths."""
    odd = rank == 1
    rows = [{"tokens": [n] * 12} for n in range(6)]
    if kind == "shuffled lists":
        return (rows[::-1] if odd else rows), {}
    if kind == "a seed each":
        return rows, {"shuffle": True, "seed": 7 if odd else 0}
    if kind == "labels":
        return [{**row, "labels": [-100, *range(odd, odd + 11)]} for row in rows], {}
    if kind == "advantages":
        rows = [{**row, "x": [0.5] * 11 + [odd / 4]} for row in rows]
        return rows, {"extra_columns": ("x",)}
    return Stream([{"tokens": [100 * odd + n] * 12} for n in range(6)]), {}


@pytest.mark.parametrize(
    "kind", ["shuffled lists", "a seed each", "labels", "advantages", "streams"]
)
def test_ranks_that_read_different_data_are_told_so_before_any_layer(kind):
    """All rows have one length, so that all ranks make the same plan."""

    def work(executor, _):
        rows, more = data_of(executor.rank, kind)
        data, plan = next(iter(load(executor.rank, rows=rows, **more)))
        with pytest.raises(RunError) as caught:
            executor.prepare(plan)
        executor.close()
        return str(caught.value), caught.value.rank, ", ".join(map(str, data.rows))

    (said, odd, first), (_, _, second), _ = found = on_ranks(work)
    assert {(text, rank) for text, rank, _ in found} == {(said, 1)}
    assert odd == 1
    assert (first == second) == (kind != "a seed each")
    assert re.fullmatch(
        "rank 1 has another content of the batch than rank 0 in prepare: expected rows "
        rf"{first} \(fingerprint \w{{16}}\), got rows {second} \(fingerprint \w{{16}}\); all ranks "
        "need the same rows and tokens .*: give every rank the same rows in the same order, "
        "shuffled with the same seed; the loader deals them to ranks and replicas",
        said,
    )


def test_a_batch_of_many_rows_is_told_in_a_short_line():
    ((_, plan),) = load(0, rows=[{"tokens": [1, 2]}] * 12)
    said = batch_note(plan).content
    assert re.fullmatch(
        r"rows 0, 1, 2, 3, 4, 5, 6, 7, \.\.\. \(12 rows\) \(finger.* \w{16}\)", said
    )


def test_a_batch_is_told_apart_by_its_extra_columns():
    def line(values, name="x", **rules):
        rows = [{"tokens": [1, 2, 3], name: values}, {"tokens": [4], name: values[:1]}]
        ((_, plan),) = load(0, rows=rows, **{"extra_columns": (name,), **rules})
        return batch_note(plan).content

    nan, other = np.float32(np.nan), np.uint32(0x7FC00123).view(np.float32)
    assert np.isnan(other)  # of other bits
    assert line([1.5, nan, -0.0]) == line(np.array([1.5, other, 0.0])) == line([1.5, -nan, 0.0])
    told = [
        line([1.5, nan, 0.0]), line([1.5, 2.0, nan]), line([1.5, nan, 0.5]), line([1, 2, 0]),
        line([1.0, 2.0, 0.0]), line([math.inf, nan, 0.0]), line([1.5, nan, 0.0], "y"),
        line([1.5, nan, 0.0], extra_columns=()), line([True, False, True]),
    ]  # fmt: skip
    assert len(set(told)) == len(told)
    # In whatever order they are named.
    rows = [{"tokens": [1, 2], "x": [1, 2], "y": [3, 4]}]
    ((_, one),), ((_, two),) = (
        load(0, rows=rows, extra_columns=n) for n in (("x", "y"), ("y", "x"))
    )
    assert batch_note(one).content == batch_note(two).content


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([12, 12], r"batch 0: expected rows of \[10, 14\] tokens, .*, got rows 0, 1 of \[12, 12\]"),
        ([24], "step 0: expected 2 rows, for which the first rank made the plans, got 1 on this"),
    ],
)
def test_rows_that_do_not_fit_the_plan_of_the_first_rank_are_refused(lengths, says):
    first, own = (load(1, rows=[{"tokens": [1] * n} for n in each]) for each in ([10, 14], lengths))
    planned = plan_request(next(first._coming()).pending.request)
    own._plans.take = lambda *_: planned
    with pytest.raises(RunError, match=f"{says} .*; give every rank the same rows in the same"):
        next(iter(own))
