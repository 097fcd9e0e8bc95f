"""The flash backends on the CPU: everything but the CUDA kernels, which stand-ins replace.

Stand-ins have the signatures of what they replace: the schema that torch registers for its
operators, and that of flash-attn-4 4.0.0b36. They compute segment by segment in float64.
"""

import sys
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import test_kernels as kernel_tests
import test_random_placements as placements
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dcp_dsl.interchange import slices
from dcp_planner import Cluster
from dcp_runtime.errors import RunError
from dcp_runtime.execute.prepared_plan import Engine
from dcp_runtime.kernels import choice, flash, flash_calls, triton_kernel
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.kernels.flash import Flash4Kernel, FlashKernel
from dcp_runtime.kernels.kernel import AttentionState, Gradients, Kernel, QueryRows, TensorKind
from dcp_runtime.kernels.triton_kernel import TritonKernel
from dcp_runtime.plans.device_plan import prepare_device


class Segments:
    """Compute in float64 what FlashAttention promises for variable-length calls."""

    def __init__(self, qkv, cu_seqlens, longest, scale, *, causal, window):
        (q, k, v), (cu_q, cu_k) = qkv, cu_seqlens
        for x in (q, k, v):  # as operators read them: 16 bytes at once, rows at any stride
            assert x.stride(-1) == 1
            assert not any(stride % 8 for stride in x.stride()[:-1])
        assert cu_q.dtype == cu_k.dtype == torch.int32
        assert (cu_q.diff().max(), cu_k.diff().max()) == longest
        self.q, self.k, self.v, self.scale, self.causal = q, k, v, scale, causal
        self.window = -1 if window is None else window
        self.group = q.shape[1] // k.shape[1]
        ends = zip(cu_q.tolist(), cu_k.tolist(), strict=True)
        self.spans = [(slice(a, b), slice(c, d)) for (a, c), (b, d) in pairwise(ends)]

    def spread(self, x, keys):
        return x[keys].double().repeat_interleave(self.group, 1)

    def scores(self, rows, keys):
        products = torch.einsum("qhd,khd->hqk", self.q[rows].double(), self.spread(self.k, keys))
        m, n = products.shape[1:]
        diagonal = torch.arange(m)[:, None] + n - m  # aligned at the bottom right
        if self.causal:
            products = products.masked_fill(torch.arange(n) > diagonal, -torch.inf)
        if self.window >= 0:
            products = products.masked_fill(torch.arange(n) < diagonal - self.window, -torch.inf)
        return products * self.scale

    def forward(self):
        out, lse = torch.zeros_like(self.q), torch.zeros(self.q.shape[1], len(self.q))
        for rows, keys in self.spans:
            scores = self.scores(rows, keys)
            weights = torch.softmax(scores, -1)
            part = torch.einsum("hqk,khd->qhd", weights, self.spread(self.v, keys))
            out[rows], lse[:, rows] = part.to(out.dtype), torch.logsumexp(scores, -1).float()
        return out, lse

    def backward(self, dout, lse, delta):
        dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64) for x in (self.q, self.k, self.v))
        for rows, keys in self.spans:
            base = lse[:, rows].double().unsqueeze(-1)
            weights = torch.exp(self.scores(rows, keys) - base)
            up = dout[rows].double()
            change = torch.einsum("qhd,khd->hqk", up, self.spread(self.v, keys))
            ds = weights * (change - delta[:, rows].unsqueeze(-1)) * self.scale
            dq[rows] += torch.einsum("hqk,khd->qhd", ds, self.spread(self.k, keys))
            for total, part, x in ((dk, ds, self.q[rows].double()), (dv, weights, up)):
                full = torch.einsum("hqk,qhd->khd", part, x)
                total[keys] += full.reshape(len(full), -1, self.group, x.shape[-1]).sum(2)
        return tuple(x.to(self.q.dtype) for x in (dq, dk, dv))


def bind(name, args, kwargs):
    """Name the arguments of an operator as torch would, which refuses what does not fit."""
    arguments = getattr(torch.ops.aten, name).default._schema.arguments
    given = dict(zip([a.name for a in arguments if not a.kwarg_only], args, strict=True)) | kwargs
    types = {a.name: str(a.type) for a in arguments}
    for key, value in given.items():
        wanted = {"Tensor": torch.Tensor, "float": float, "int": int, "bool": bool}
        kind = types[key].removeprefix("Optional[").removesuffix("]")
        assert isinstance(value, wanted[kind]), (key, types[key])
    return SimpleNamespace(**given)


class AtenStandIn:
    def segments(self, a):
        qkv, cu_seqlens = (a.query, a.key, a.value), (a.cum_seq_q, a.cum_seq_k)
        longest, window = (a.max_q, a.max_k), a.window_size_left
        return Segments(qkv, cu_seqlens, longest, a.scale, causal=a.is_causal, window=window)

    def _flash_attention_forward(self, *args, **kwargs):
        given = bind("_flash_attention_forward", args, kwargs)
        assert (given.dropout_p, given.return_debug_mask) == (0.0, False)
        return *self.segments(given).forward(), None, None, None

    def _flash_attention_backward(self, *args, **kwargs):
        given = bind("_flash_attention_backward", args, kwargs)
        delta = (given.grad_out.double() * given.out.double()).sum(-1).T
        return self.segments(given).backward(given.grad_out, given.logsumexp, delta)


def standin_forward(  # noqa: PLR0913 - as the package has it
    q, k, v, qv=None, cu_seqlens_q=None, cu_seqlens_k=None, seqused_q=None, seqused_k=None,
    max_seqlen_q=None, max_seqlen_k=None, min_seqlen_k=None, page_table=None, softmax_scale=None,
    causal=False, softcap=None, window_size_left=None, *, return_lse=False, out=None,
):  # fmt: skip
    assert return_lse
    assert window_size_left is None or window_size_left >= 0
    cu_seqlens, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    segments = Segments(
        (q, k, v), cu_seqlens, longest, softmax_scale, causal=causal, window=window_size_left
    )
    found, lse = segments.forward()
    return _into(out, found), lse, None, None, None


def _into(given, found):
    return found if given is None else given.copy_(found)


def standin_backward(  # noqa: PLR0913 - as the package has it
    q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, window_size_left=None,
    *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dlse=None, dq=None,
):  # fmt: skip
    assert out.shape == dout.shape == q.shape
    assert q.dtype == k.dtype == v.dtype == out.dtype == dout.dtype
    assert lse.shape == dlse.shape == (q.shape[1], len(q))
    assert lse.dtype == dlse.dtype == torch.float32
    cu_seqlens, longest = (cu_seqlens_q, cu_seqlens_k), (max_seqlen_q, max_seqlen_k)
    segments = Segments(
        (q, k, v), cu_seqlens, longest, softmax_scale, causal=causal, window=window_size_left
    )
    delta = (out.double() * dout.double()).sum(-1).T - dlse.double()
    found, dk, dv = segments.backward(dout, lse, delta)
    return _into(dq, found), dk, dv


PACKAGE = SimpleNamespace(_flash_attn_fwd=standin_forward, _flash_attn_bwd=standin_backward)
KERNELS = {
    "flash": lambda: FlashKernel(AtenStandIn()),
    "flash4": lambda: Flash4Kernel(PACKAGE),
}


@pytest.mark.parametrize("mask", ["causal", "streaming", "blind_rows", "scattered", "full"])
@pytest.mark.parametrize("heads", ["gqa", "mqa"])
@pytest.mark.parametrize("name", KERNELS)
def test_gathered_calls_are_as_exact_as_eager_attention(lab, mask, heads, name):
    sparsity = lab.sparsity_of([lab.MASKS[mask](n) for n in (50, 1, 23)], 24)
    qkv = lab.random_qkv(1, 74, *kernel_tests.HEADS[heads], 16, torch.float32)
    got = kernel_tests.run_kernel(KERNELS[name](), sparsity, qkv, seed=2)
    lab.assert_as_exact_as_eager(got, *qkv, kernel_tests.dense_of(sparsity))


@pytest.mark.usefixtures("nan_in_new_memory")
@pytest.mark.parametrize("name", KERNELS)
def test_sums_that_calls_begin_and_end_are_exact_on_plans_of_any_shape(lab, name, monkeypatch):
    monkeypatch.setattr(choice, "CpuKernel", KERNELS[name])
    monkeypatch.setattr(placements, "DTYPES", (torch.float32,))
    for seed in range(60, 68):
        if seed % 4:  # the others run the reference
            placements.check(lab, seed)


@pytest.mark.usefixtures("nan_in_new_memory")
@pytest.mark.parametrize("name", KERNELS)
def test_sums_between_the_calls_of_an_only_table_are_exact(lab, name, monkeypatch):
    monkeypatch.setattr(choice, "CpuKernel", KERNELS[name])
    for blind in (slice(0), slice(20, 24)):  # rows in no call
        mask = lab.MASKS["streaming"](64, 8, 12)
        mask[blind] = False
        lab.check_plan(lab.plan_of([mask], block=64, heads=(4, 2, 16), dtype_bytes=2), mask, 1)


@pytest.mark.parametrize("is_cuda", [True, False])
@pytest.mark.parametrize("triton", [object(), None], ids=["with triton", "without"])
def test_partial_results_on_a_gpu_are_merged_by_triton_if_it_is_there(monkeypatch, is_cuda, triton):
    merged = []
    monkeypatch.setattr(flash, "find_spec", {"triton": triton}.get)
    monkeypatch.setattr(
        triton_kernel, "merge_rows", lambda *given: merged.append(("triton", *given))
    )
    monkeypatch.setattr(Kernel, "merge", lambda _, *given: merged.append(("torch", *given)))
    given = "state", 4, SimpleNamespace(is_cuda=is_cuda), "lse"
    FlashKernel(AtenStandIn()).merge(*given)
    assert merged == [("triton" if is_cuda and triton else "torch", *given)]


def test_the_only_call_of_a_table_writes_results_and_two_need_sums_between_them(lab):
    for mask, turns in (
        (np.tri(256, dtype=bool), [(True, True)]),
        (lab.MASKS["streaming"](256, 8, 32), [(True, False), (True, True), (False, True)]),
    ):
        plan = lab.plan_of([mask], block=256, heads=(4, 2, 16), dtype_bytes=2)
        (table,) = prepare_device(plan, 0, 128).forward.tables
        found = flash_calls.flash_calls(table)
        assert [(call.opens, call.closes) for call in found.calls] == turns
        assert found.blank == found.left == flash_calls.NO_ROW


@pytest.mark.parametrize("name", KERNELS)
def test_calls_of_many_segments_are_cut_and_stay_exact(lab, name, monkeypatch):
    monkeypatch.setattr(flash_calls, "MAX_SEGMENTS", 3)
    masks = [lab.MASKS["streaming"](n, 2, 5) for n in (9, 1, 30, 12, 7, 20, 3)]
    sparsity = lab.sparsity_of(masks, 24)
    segments = []
    whole = flash_calls.flash_calls

    def noted(table):
        found = whole(table)
        segments.extend(len(call.cu_seqlens_q) - 1 for call in found.calls)
        return found

    monkeypatch.setattr(flash, "flash_calls", noted)
    qkv = lab.random_qkv(1, 82, 4, 2, 16, torch.float32)
    got = kernel_tests.run_kernel(KERNELS[name](), sparsity, qkv, seed=2)
    assert max(segments) == 3
    lab.assert_as_exact_as_eager(got, *qkv, kernel_tests.dense_of(sparsity))


@pytest.mark.parametrize("mask", ["causal", "streaming", "scattered", "full"])
@pytest.mark.parametrize("name", KERNELS)
def test_rows_that_lie_in_order_give_the_bits_of_gathered_rows(lab, mask, name, monkeypatch):
    sparsity = lab.sparsity_of([lab.MASKS[mask](n) for n in (50, 1, 23)], 24)
    qkv = lab.random_qkv(1, 74, 4, 2, 16, torch.float32)
    in_place, gathered = [], []
    for found, rows in ((in_place, flash_calls._rows), (gathered, torch.from_numpy)):

        def noted(index, found=found, rows=rows):
            found.append(rows(index))
            return found[-1]

        with monkeypatch.context() as patch:
            patch.setattr(flash_calls, "_rows", noted)
            found.append(kernel_tests.run_kernel(KERNELS[name](), sparsity, qkv, seed=2))
    assert any(isinstance(rows, slice) for rows in in_place)
    assert len(in_place) == len(gathered)
    ours, theirs = in_place[-1], gathered[-1]
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


class Moves(TorchDispatchMode):
    """Notes by name the operations that move tensors of at least `size` elements."""

    def __init__(self, size):
        super().__init__()
        self.size, self.names = size, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        is_move = name in {"index", "index_put_", "index_add_", "clone", "stack", "zeros_like"}
        if is_move and found.numel() >= self.size:
            self.names.append(name)
        return found


@pytest.mark.parametrize("is_in_order", [True, False])
def test_rows_that_lie_in_order_are_not_moved(lab, is_in_order, monkeypatch):
    part = part_of(lab)
    if not is_in_order:
        monkeypatch.setattr(flash_calls, "_rows", torch.from_numpy)
    bf16, rows, lse = torch.bfloat16, (1024, 8, 16), torch.zeros(1024, 8)
    package = SimpleNamespace(
        _flash_attn_fwd=lambda q, *_, **__: (torch.zeros(q.shape, dtype=bf16), lse.T),
        _flash_attn_bwd=lambda q, k, v, *_, **__: tuple(torch.zeros(x.shape) for x in (q, k, v)),
    )
    kernel = Flash4Kernel(package)
    q, kv = torch.zeros(rows, dtype=bf16), torch.zeros(1024, 2, 2, 16, dtype=bf16)
    state = AttentionState.empty(*rows, torch.float32)
    sums = Gradients(torch.zeros(rows), torch.zeros(kv.shape))
    with Moves(kv[:, 0].numel()) as moves:
        for table in part.forward.tables:
            kernel.forward(q, kv, table, 1.0, state)
        for table in part.backward.tables:
            kernel.backward(QueryRows(q, q, lse, lse), kv, table, 1.0, sums)
    forward = ["index"] * 3 + ["index_put_"]  # kv, q and the state, which is put back
    backward = ["index"] * 3 + ["index_add_"] * 3  # kv, q and dout; dq, dk and dv
    assert moves.names == ([] if is_in_order else forward + backward)


@pytest.fixture
def hopper(monkeypatch):
    """A GPU on which `triton` and `flash4` can compute, as far as the choice can see."""
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", PACKAGE)
    monkeypatch.setattr(flash, "version", lambda _: "4.0.0b36")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


def test_flash4_is_imported_when_it_is_made_and_not_before(request):
    assert "flash_attn" not in sys.modules
    request.getfixturevalue("hopper")
    assert choose_kernel(torch.bfloat16, "cuda", "flash4", 128).kernel.name == "flash4"


def part_of(lab):
    """A triangle of 1,024 tokens on one device."""
    mask, cluster = np.tri(1024, dtype=bool), Cluster(devices_per_node=1, kernel_launch_s=0.0)
    plan = lab.plan_of([mask], block=256, heads=(32, 8, 128), dtype_bytes=2, cluster=cluster)
    return prepare_device(plan, 0, 128)


def chosen_for(part):
    return choose_kernel(torch.bfloat16, "cuda", head_dim=128, part=part)


@pytest.mark.usefixtures("hopper")
def test_the_kernel_that_is_predicted_to_be_faster_is_chosen_and_says_why(lab):
    choice = chosen_for(part_of(lab))
    assert choice.kernel.name == "flash4"
    reason = dict(choice.refused)["triton"]
    # Of 64 tiles of 128 x 128, 28 lie below the diagonal and 8 on it. `triton` has tiles of 32 rows
    # of four heads: on a diagonal they have 1, 2, 3 and 4 edges of 32 keys.
    edges = 8 * 128**2 * 10 // 16, 8 * 128**2
    for edge in edges:
        assert f"(1 launches, {28 * 128**2:,} pairs in whole tiles, {edge:,} at edges" in reason


def test_a_window_is_one_call_whose_tiles_are_those_that_rows_see(lab):
    q, k = np.ogrid[:1024, :1024]
    mask = (k <= q) & (q - k < 256)
    plan = lab.plan_of([mask], block=256, heads=(8, 2, 128), dtype_bytes=2)
    (table,) = prepare_device(plan, 0, 128).forward.tables
    (call,) = flash_calls.flash_calls(table).calls
    assert (call.causal, call.window) == (True, 255)
    share = mask.reshape(8, 128, 8, 128).mean((1, 3))
    kind = TensorKind(torch.bfloat16, torch.device("cpu"), 128, group=4)
    work = KERNELS["flash4"]().work(table, kind)
    assert (work.launches, work.whole) == (1, int((share == 1).sum()) * 128**2)
    assert work.edge == int(((share > 0) & (share < 1)).sum()) * 128**2


@pytest.mark.usefixtures("hopper")
def test_a_later_plan_that_gathers_too_much_gets_another_kernel(lab, monkeypatch):
    loaded = []
    monkeypatch.setattr(flash_calls.FlashCall, "to", lambda call, _: call)
    monkeypatch.setattr(TritonKernel, "load", lambda *tables: loaded.append(tables))
    kind, first, later = (
        TensorKind(torch.bfloat16, torch.device("cuda"), 128),
        *(part_of(lab) for _ in range(2)),
    )
    engine = Engine.make(kind, None, first)
    assert engine.kernel.name == "flash4"
    assert "earlier plan" not in engine.choice.explain()
    kept = engine.take(first, None)
    assert kept.kernel is engine.kernel
    assert kept.choice.explain().startswith("kernel 'flash4', chosen and predicted for an earlier")
    asked = Engine.make(kind, "flash4", first).take(first, "flash4")
    assert asked.choice.explain().startswith("kernel 'flash4'\n")
    monkeypatch.setattr(slices, "MAX_INDICES", 100)
    other = engine.take(later, None)
    assert (other.kernel.name, len(loaded)) == ("triton", 1)
    assert "too many rows and keys" in dict(other.choice.refused)["flash4"]
    with pytest.raises(RunError, match=r"too many rows and keys.*kernel 'triton'"):
        engine.take(later, "flash4")


@pytest.mark.usefixtures("hopper")
def test_a_mask_that_gathers_too_much_or_a_broken_package_is_no_reason_to_stop(lab, monkeypatch):
    part = part_of(lab)
    with monkeypatch.context() as patch:
        patch.setattr(slices, "MAX_INDICES", 100)
        gathered = chosen_for(part)
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", None)
    for chosen, says in (
        (gathered, "at most 100 are written"),
        (chosen_for(part), "flash_attn.cute.interface"),
    ):
        assert chosen.kernel.name == "triton"
        assert says in dict(chosen.refused)["flash4"]
