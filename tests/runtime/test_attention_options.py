"""Layers of other models: a scale, soft caps, sinks, k and v apart, heads of two sizes."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_runtime import DCPAttn, DCPExecutor, RunError
from dcp_runtime.execute.attention import attention
from dcp_runtime.execute.prepared_plan import check_tensors
from dcp_runtime.transport.loopback import LoopbackTransport, LoopbackWorld

NAMES = ("out", "dq", "dk", "dv", "dsinks")


def dense(q, k, v, mask, scale, softcap, sinks):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = scale * torch.einsum("qhd,khd->hqk", q, k)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.exp(scores) * torch.tensor(mask)
    total = weights.sum(-1, keepdim=True) + torch.exp(sinks)[:, None, None]
    return torch.einsum("hqk,khd->qhd", weights / total.clamp_min(1e-300), v)


def wanted(tensors, dout, mask, scale, softcap):
    leaves = [x.double().clone().requires_grad_() for x in tensors]
    out = dense(*leaves[:3], mask, scale, softcap, leaves[3])
    gradients = torch.autograd.grad(out, leaves, dout.double())
    return dict(zip(NAMES, (out.detach(), *gradients), strict=True))


def draw(tokens, heads, kv_heads, dim, v_dim, dtype):
    generator = torch.Generator().manual_seed(5)
    shapes = (tokens, heads, dim), (tokens, kv_heads, dim), (tokens, kv_heads, v_dim), (heads,)
    made = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    return made, torch.randn((tokens, heads, v_dim), generator=generator).to(dtype)


def found(plan, tensors, dout, kernel, packed=False, **options):
    """Return out and gradients of all ranks, whole."""

    with_sinks = options.get("sinks", True)

    def run(transport):
        rows = torch.tensor(plan.local_tokens(transport.rank))
        q, k, v = (x[rows].requires_grad_() for x in tensors[:3])
        sinks = tensors[3].clone().requires_grad_()
        prepared = DCPExecutor(kernel=kernel, transport=transport, check_finite=True).prepare(plan)
        kv = torch.stack([k, v], 1) if packed else (k, v)
        given = {**options, "sinks": sinks if with_sinks else None}
        out = DCPAttn.apply(prepared, q, kv, **given)
        out.backward(dout[rows])
        assert not packed or k.grad is not None
        assert prepared.batch.is_finished
        return rows, (out.detach(), q.grad, k.grad, v.grad), sinks.grad

    parts = LoopbackWorld(plan.num_devices).run(run)
    whole = {}
    for i, name in enumerate(NAMES[:4]):
        first = parts[0][1][i]
        whole[name] = torch.full((plan.num_tokens, *first.shape[1:]), torch.nan, dtype=first.dtype)
        for rows, tensors_of, _ in parts:
            whole[name][rows] = tensors_of[i]
    if with_sinks:
        whole["dsinks"] = sum(dsinks for *_, dsinks in parts)
    return whole


def make(lab, name="blind_rows", ranks=4, dim=8, heads=(4, 2), groups=1):
    mask = lab.MASKS[name](70)
    return lab.plan_of([mask], ranks, heads=(*heads, dim), head_groups=groups), mask


def assert_close(got, want, tolerance):
    for name, value in got.items():
        error = float((value.double() - want[name]).norm() / want[name].norm())
        assert error < tolerance, (name, error)


@pytest.mark.parametrize(("groups", "packed"), [(1, False), (1, True), (2, False), (4, True)])
@pytest.mark.parametrize("kernel", ["cpu", "reference"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_scale_sinks_and_keys_apart_are_exact(lab, dtype, kernel, packed, groups):
    plan, mask = make(lab, groups=groups)
    tensors, dout = draw(70, 4, 2, 8, 8, dtype)
    got = found(plan, tensors, dout, kernel, packed, softmax_scale=0.7)
    want = wanted(tensors, dout, mask, 0.7, None)
    assert_close(got, want, 1e-12 if dtype == torch.float64 else 2e-2)


def test_soft_caps_are_exact_and_go_with_all_else(lab):
    plan, mask = make(lab)
    tensors, dout = draw(70, 4, 2, 8, 8, torch.float64)
    got = found(plan, tensors, dout, None, softmax_scale=2.0, softcap=1.5)
    assert_close(got, wanted(tensors, dout, mask, 2.0, 1.5), 1e-12)


@pytest.mark.parametrize(("dim", "v_dim"), [(24, 16), (16, 24)])
def test_heads_of_two_sizes_are_exact(lab, dim, v_dim):
    plan, mask = make(lab, dim=24)
    tensors, dout = draw(70, 4, 2, dim, v_dim, torch.float64)
    got = found(plan, tensors, dout, "cpu")
    assert got["out"].shape == (70, 4, v_dim)
    assert_close(got, wanted(tensors, dout, mask, dim**-0.5, None), 1e-12)


class Pads(TorchDispatchMode):
    """Notes the shapes of tensors that are filled up, in forward, or cut, in backward."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.constant_pad_nd.default:
            self.shapes.append(tuple(args[0].shape))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("dim", "v_dim", "padded"),
    [
        (24, 16, [(70, 2, 16), (70, 2, 24)]),  # v; dv
        (16, 24, [(70, 4, 16), (70, 2, 16), (70, 4, 24), (70, 2, 24)]),  # q, k; dq, dk
    ],
)
def test_only_the_smaller_heads_are_copied(lab, dim, v_dim, padded):
    plan, _ = make(lab, ranks=1, dim=24)
    (*qkv, _), dout = draw(70, 4, 2, dim, v_dim, torch.float32)

    def work(transport):
        q, k, v = (x.clone().requires_grad_() for x in qkv)
        prepared = DCPExecutor(transport=transport).prepare(plan)
        with Pads() as pads:
            DCPAttn.apply(prepared, q, (k, v)).backward(dout)
        return pads.shapes

    (found,) = LoopbackWorld(1).run(work)
    assert sorted(found) == sorted(padded)


@pytest.mark.parametrize("ranks", [1, 3])
def test_keys_apart_give_the_bits_of_packed_ones_and_so_do_sinks_that_weigh_nothing(lab, ranks):
    plan, _ = make(lab, "streaming", ranks)
    tensors, dout = draw(70, 4, 2, 8, 8, torch.float32)
    packed = found(plan, tensors, dout, "cpu", packed=True, sinks=None)
    apart = found(plan, tensors, dout, "cpu", sinks=None)
    none = found(plan, [*tensors[:3], torch.full((4,), -torch.inf)], dout, "cpu")
    assert (none.pop("dsinks") == 0).all()
    for name, value in packed.items():
        assert torch.equal(value, apart[name]), name
        assert torch.equal(value, none[name]), name


def test_wrong_options_of_one_rank_are_refused_on_both(lab):
    plan, _ = make(lab, ranks=2)
    (q, k, v, _), _ = draw(70, 4, 2, 8, 8, torch.float32)
    cases = (  # options of both ranks, those of rank 1, what is said
        ({}, {"softcap": 0.0}, r"expected a soft cap above 0, got 0\.0"),
        ({}, {"softmax_scale": float("nan")}, "expected a softmax_scale above 0, got nan"),
        ({}, {"sinks": torch.zeros(3)}, r"a sink per query head, \[4\] on cpu, got \[3\]"),
        ({"softmax_scale": 0.5}, {"softmax_scale": 0.50001},
         r"expected .* with softmax_scale 0\.5, got .* with softmax_scale 0\.50001"),
    )  # fmt: skip

    def run(transport):
        rows = torch.tensor(plan.local_tokens(transport.rank))
        prepared = DCPExecutor(transport=transport).prepare(plan)
        for options, own, says in cases:
            options = own if transport.rank else options
            with pytest.raises(RunError, match=says):
                DCPAttn.apply(prepared, q[rows], (k[rows], v[rows]), **options)
        with pytest.raises(RunError, match=r"and v \[\d+, 2, 8\], got"):
            DCPAttn.apply(prepared, q[rows], (k[rows], v[rows][1:]))

    LoopbackWorld(2).run(run)


@pytest.mark.parametrize("is_retained", [False, True])
def test_saved_tensors_may_be_copied_as_offloading_does(lab, is_retained):
    plan, _ = make(lab, ranks=1)
    executor = DCPExecutor(transport=LoopbackTransport(LoopbackWorld(1), 0))
    (q, k, v, _), dout = draw(70, 4, 2, 8, 8, torch.float32)
    kv = torch.stack([k, v], 1)

    def layer(*hooks):
        leaf = q.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            return leaf, DCPAttn.apply(executor.prepare(plan), leaf, kv)

    leaf, out = layer(torch.clone, lambda x: x)
    other, same = layer(lambda x: x, lambda x: x)
    with pytest.raises(RunError, match="waits for its backward"):
        DCPAttn.apply(executor, q, kv)  # the first batch is still open
    out.backward(dout, retain_graph=is_retained)
    same.backward(dout)
    assert torch.equal(leaf.grad, other.grad)
    prepared = executor.prepare(plan)
    assert prepared.forward(q, kv)[0].equal(out)
    if is_retained:  # the plan of the first batch was dropped
        with pytest.raises(RunError, match=r"keep what executor.prepare\(plan\) returned"):
            out.backward(dout)


def test_the_operator_keeps_the_promises_of_its_fake_kernels(lab):
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")  # no call repeats
    plan, _ = make(lab, ranks=1)
    (q, k, v, sinks), _ = draw(70, 4, 2, 8, 8, torch.float32)

    def run(transport):
        prepared = DCPExecutor(transport=transport).prepare(plan)
        for keys in ((k, v), (torch.stack([k, v], 1), None)):
            leaves = [x if x is None else x.clone().requires_grad_() for x in (q, *keys, sinks)]
            torch.library.opcheck(
                attention, (prepared.handle, *leaves, 0.3, None, [], "", 3), test_utils=checks
            )

    LoopbackWorld(1).run(run)


PART = SimpleNamespace(
    device=1, num_local=6,
    heads=SimpleNamespace(groups=1, shape=SimpleNamespace(q_heads=4, kv_heads=2, head_dim=8)),
)  # fmt: skip


@pytest.mark.parametrize("keys", ["one tensor", "a pair"])
def test_a_batch_dimension_in_front_is_dropped(keys):
    q, k = torch.zeros(1, 6, 4, 8), torch.zeros(1, 6, 2, 8)
    kv = (k, k) if keys == "a pair" else torch.zeros(1, 6, 2, 2, 8)
    with pytest.raises(RunError, match="drop the batch dimension: give") as caught:
        check_tensors(PART, q, kv)
    given = {"q": q, "kv": kv, "k": k, "v": k}
    names = re.findall(r"(\w+)\[0\]", str(caught.value))
    first, *others = (given[name][0] for name in names)
    check_tensors(PART, first, tuple(others) if others[1:] else others[0])


def test_other_rows_are_no_batch_dimension():
    for q in (torch.zeros(7, 4, 8), torch.zeros(2, 3, 4, 8)):
        with pytest.raises(RunError, match=r"take the rows plan\.local_tokens"):
            check_tensors(PART, q, torch.zeros(7, 2, 2, 8))
