"""Dense attention against autograd, and a verdict that a small fault changes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, Provenance, build_plan
from dcp_runtime.errors import RunError
from dcp_runtime.verify import dense_attention
from dcp_runtime.verify.dense_attention import HeadTensors, Rounding, eager, exact
from dcp_runtime.verify.verification import (
    Inputs,
    _Measure,
    _rounding_of,
    _Tally,
    random_inputs,
    verify,
)

ROUNDING = Rounding(tensor=1e-7, sums=1e-7)
SPEC = "mask band(w: tokens = 20) = causal and q - k < w"


def head_of(q, kv, dout, head):
    groups = q.shape[1] // kv.shape[2]
    mine = slice(head * groups, (head + 1) * groups)
    return HeadTensors(
        q[:, mine].transpose(0, 1), kv[:, 0, head], kv[:, 1, head], dout[:, mine].transpose(0, 1)
    )


@pytest.mark.parametrize("chunk_bytes", [1, 20_000, 2**30])
@pytest.mark.parametrize("mask", ["causal", "blind_rows", "scattered"])
def test_dense_attention_equals_autograd(lab, monkeypatch, mask, chunk_bytes):
    monkeypatch.setattr(dense_attention, "CHUNK_BYTES", chunk_bytes)
    q, kv, dout = lab.random_qkv(0, 60, 4, 2, 8, torch.float64)
    dense = lab.masks[mask](60)
    want = lab.eager(q, kv, dout, dense)
    for head in (0, 1):
        part, seen = head_of(q, kv, dout, head), torch.tensor(dense)
        for got in (exact(part, seen, ROUNDING)[0], eager(part, seen)):
            rows = slice(2 * head, 2 * head + 2)
            torch.testing.assert_close(got.out, want["out"][:, rows].transpose(0, 1))
            torch.testing.assert_close(got.dq, want["dq"][:, rows].transpose(0, 1))
            torch.testing.assert_close(got.dk, want["dkv"][:, 0, head])
            torch.testing.assert_close(got.dv, want["dkv"][:, 1, head])


def case(lab, lengths, provenance=True):
    """A plan that was run, its inputs and results."""
    spec = Spec.from_text(SPEC)
    mask = spec.mask("band")
    samples = [Sample(length=n) for n in lengths]
    sparsity = block_sparsity([mask.bind(s) for s in samples], 16, 16)
    origin = Provenance(spec.source, mask.call, tuple(s.to_json() for s in samples))
    plan = build_plan(
        sparsity, ModelShape(4, 2, 8, 4), Cluster(devices_per_node=2), PlanConfig("static:zigzag"),
        provenance=origin if provenance else None,
    )  # fmt: skip
    inputs = random_inputs(plan, list(range(len(plan.blocks))), 0, 0, torch.float32)
    results, _ = lab.run_in_threads(plan, inputs.q, inputs.kv, inputs.dout)
    return plan, inputs, results


@pytest.fixture(scope="module")
def ran(lab):
    return case(lab, (70, 1, 25))


@pytest.mark.parametrize("provenance", [True, False])
@pytest.mark.parametrize("lengths", [(70, 1, 25), (1, 1, 1)])
def test_right_results_are_verified(lab, lengths, provenance):
    plan, inputs, results = case(lab, lengths, provenance)
    verdict = verify(plan, [(inputs, results)], torch.float32)
    assert verdict.is_ok, verdict.errors
    assert verdict.mask_source == ("provenance" if provenance else "slabs")


@pytest.mark.parametrize("tensor", ["out", "dq", "dk", "dv"])
@pytest.mark.parametrize("fault", ["scaled", "one element", "nan"])
def test_a_fault_in_one_tensor_is_found(ran, tensor, fault):
    plan, inputs, results = ran
    wrong = {name: value.clone() for name, value in results.items()}
    target = wrong["dkv"][:, ["dk", "dv"].index(tensor)] if tensor[1] in "kv" else wrong[tensor]
    match fault:
        case "scaled":
            target *= 1 + 1e-5
        case "one element":
            target[33, 0, 3] += 3e-5
        case "nan":
            target[33, 0, 3] = torch.nan
    verdict = verify(plan, [(inputs, wrong)], torch.float32)
    assert [e.tensor for e in verdict.errors if not e.ok] == [tensor]


@pytest.mark.parametrize(("norm", "peak"), [(9.0, 0.5), (0.5, 9.0), (0.5, 0.5)])
def test_the_bound_is_for_the_norm_and_for_the_worst_element(norm, peak):
    # The exact tensor has norm and peak 1e-9: nothing is left but eager's error and the spread.
    tally = _Tally(
        error=_Measure(norm**2, peak),
        eager=_Measure(1.0, 1.0),
        exact=_Measure(1e-18, 1e-9),
        spread=_Measure(1.0, 1.0),
    )
    assert tally.finish("out", ROUNDING).ok == (norm < 1 and peak < 1)


@pytest.mark.parametrize(
    ("dtype", "tensor", "sums"),
    [
        (torch.float32, 2**-23, 2**-23),
        (torch.bfloat16, 2**-7, 2**-23),
        (torch.float64, 2**-48, 2**-48),  # sixteen units: the reference rounds as much
    ],
    ids=str,
)
def test_only_a_run_in_float64_has_room_for_the_rounding_of_the_reference(dtype, tensor, sums):
    assert _rounding_of(dtype) == Rounding(tensor, sums)


def told(plan, **changes):
    """The plan, as if another mask or other samples had been planned."""
    return replace(plan, provenance=replace(plan.provenance, **changes))


def test_a_mask_that_is_off_by_one_key_is_found(ran):
    plan, *run = ran
    assert not verify(told(plan, mask="band(w = 21)"), [run], torch.float32).is_ok


def test_provenance_that_does_not_fit_is_refused(ran):
    plan, *run = ran
    for change, says in (
        ({"samples": ('{"len": 70}',) * 3}, "samples of .70, 70, 70. tokens"),
        ({"mask": "bend"}, "cannot be rebuilt from the spec"),
        ({"spec": "mask band ="}, "cannot be rebuilt from the spec"),
    ):
        with pytest.raises(RunError, match=says):
            verify(told(plan, **change), [run], torch.float32)


def test_inputs_of_a_block_do_not_depend_on_its_neighbours(ran):
    plan, whole, _ = ran
    start, end = int(plan.blocks.start[3]), int(plan.blocks.end[3])
    alone = random_inputs(plan, [3], 0, 0, torch.float32)
    assert torch.equal(alone.q, whole.q[start:end])
    assert torch.equal(alone.kv, whole.kv[start:end])
    assert not np.allclose(alone.q, random_inputs(plan, [3], 1, 0, torch.float32).q)


@pytest.mark.parametrize(("head_dim", "seed", "mask"), [(1, 7, "blind_rows"), (2, 6, "causal")])
def test_narrow_heads_whose_eager_error_is_luck_are_verified_and_small_faults_are_not(
    lab, head_dim, seed, mask
):
    sparsity = lab.sparsity_of([lab.masks[mask](n) for n in (40, 1, 23)], 16)
    shape, config = ModelShape(1, 1, head_dim, 4), PlanConfig(partitioner="static:zigzag")
    plan = build_plan(sparsity, shape, Cluster(devices_per_node=3), config)
    q, kv, dout = lab.random_qkv(seed, 64, 1, 1, head_dim, torch.float32)
    got, _ = lab.run_in_threads(plan, q, kv, dout)
    inputs = Inputs(q, kv, dout)
    assert verify(plan, [(inputs, got)], torch.float32).is_ok
    for name in ("out", "dq", "dkv"):
        wrong = got | {name: got[name] * (1 + 1e-5)}
        assert not verify(plan, [(inputs, wrong)], torch.float32).is_ok
