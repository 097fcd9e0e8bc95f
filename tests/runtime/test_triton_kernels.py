"""Our CUDA kernels without a GPU: Triton's interpreter runs their source in this process.

Its bfloat16 dot products are wrong, so float32 and float16 stand for all.
"""

import importlib.util
import threading
from dataclasses import replace

import numpy as np
import pytest
import test_kernels as kernel_tests
import test_precision
import test_random_placements as placements
import test_triton as tables
import torch
import triton.language as tl
from triton import knobs
from triton.runtime import interpreter

from dcp_planner import Cluster, ModelShape, TransferKind
from dcp_runtime.kernels import triton_kernel
from dcp_runtime.kernels.choice import choose_kernel
from dcp_runtime.kernels.kernel import (
    AttentionState,
    Gradients,
    QueryRows,
    ReferenceKernel,
    row_delta,
)
from dcp_runtime.kernels.triton_kernel import TritonKernel


@pytest.fixture(scope="module", autouse=True)
def interpreted():
    """Read the source of the kernels anew, for the interpreter, and let them call that copy.

    Triton decides as it decorates a function: functions of its own library, which are decorated
    already, get their interpreted form here.
    """
    made = interpreter.InterpretedFunction

    def call(function, *given, **named):
        return function.rewrite()(*given, **named)

    with knobs.runtime.scope(), pytest.MonkeyPatch.context() as patch:
        knobs.runtime.interpret = True
        spec = importlib.util.find_spec("dcp_runtime.kernels.triton_source")
        source = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(source)
        patch.setattr(triton_kernel, "triton_source", source)
        library = {name: getattr(tl, name).fn for name in ("max", "sum", "zeros")}
        language = interpreter._patch_lang(library["sum"])
        for name, function in library.items():
            patch.setattr(tl, name, made(function))
        # It would patch the language for each call of a function inside a kernel once more.
        patch.setattr(made, "__call__", call)
        # Else each sum of integers has a check that nobody reads outside a debug mode.
        unchecked = interpreter.InterpreterOptions(sanitize_overflow=False)
        patch.setattr(interpreter.interpreter_builder, "options", unchecked)
        yield
        language.restore()


HEADS = kernel_tests.HEADS | {"4 a tile": (8, 1), "group of 4": (4, 1)}
CASES = [
    # mask, heads, head_dim, dtype, lengths, plan block, rows per segment
    ("causal", "gqa", 32, torch.float32, (40, 1, 17), 24, 128),
    ("streaming", "mha", 64, torch.float32, (70,), 70, 16),
    ("scattered", "4 a tile", 32, torch.float32, (33, 20), 33, 128),
    ("blind_rows", "mqa", 96, torch.float32, (30, 13), 13, 128),
    ("full", "gqa", 128, torch.float16, (37,), 20, 128),
    ("scattered", "group of 4", 64, torch.float16, (50,), 50, 128),
    ("causal", "gqa", 32, torch.float16, (150,), 150, 256),
    ("blind_rows", "gqa", 192, torch.float32, (19,), 19, 128),
    ("streaming", "group of 4", 256, torch.float16, (40,), 40, 128),
]


@pytest.fixture(autouse=True)
def heads_share_tiles(monkeypatch):
    """In float32 too, and three heads, which leave rows of a tile empty; 16 bits as chosen."""
    chosen, shared = triton_kernel.launch_shape, {1: 1, 2: 2, 3: 3, 4: 4, 8: 4}

    def shape_of(kernel, dtype, arch, group, head_dim):
        shape = chosen(kernel, dtype, arch, group, head_dim)
        return replace(shape, heads=shared[group]) if dtype == torch.float32 else shape

    monkeypatch.setattr(triton_kernel, "launch_shape", shape_of)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_are_as_exact_as_eager_attention(lab, case):
    mask, heads, dim, dtype, lengths, block, rows = case
    sparsity = lab.sparsity_of([lab.MASKS[mask](n) for n in lengths], block)
    qkv = lab.random_qkv(1, sum(lengths), *HEADS[heads], dim, dtype)
    got = kernel_tests.run_kernel(TritonKernel(), sparsity, qkv, 2, 2, rows)
    lab.assert_as_exact_as_eager(got, *qkv, kernel_tests.dense_of(sparsity))


@pytest.mark.parametrize("seed", [0, 2])
def test_random_tables_give_what_the_reference_gives(lab, seed):
    table = tables.random_table(np.random.default_rng(seed), 7, 90)
    rows, _, dout = lab.random_qkv(seed, 56, 4, 2, 32, torch.float32)
    _, kv, _ = lab.random_qkv(seed + 9, 90, 4, 2, 32, torch.float32)
    found = []
    for each in (TritonKernel(), ReferenceKernel()):
        state = AttentionState.empty(56, 4, 32, torch.float32)
        each.forward(rows, kv, table, 0.2, state)
        queries = QueryRows(rows, dout, state.lse, row_delta(state.out, dout))
        sums = Gradients(torch.zeros_like(rows), torch.zeros_like(kv))
        each.backward(queries, kv, table, 0.2, sums)
        found.append((state.out, state.lse, sums.dq, sums.dkv))
    for got, expected in zip(*found, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=2e-6)


def test_soft_caps_are_those_of_the_reference_kernel(lab):
    sparsity = lab.sparsity_of([lab.MASKS["causal"](70)], 40)
    qkv = lab.random_qkv(7, 70, 2, 1, 32, torch.float32)
    qkv[0].mul_(5)  # scores far beyond the cap
    kernels = TritonKernel(1.5), ReferenceKernel(1.5), ReferenceKernel()
    got, expected, uncapped = (kernel_tests.run_kernel(k, sparsity, qkv, 3, 1, 32) for k in kernels)
    for name in ("out", "lse", "dq", "dkv"):
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=2e-6)
        assert (uncapped[name] - expected[name]).abs().max() > 0.1


def test_two_runs_give_the_same_bits(lab):
    sparsity = lab.sparsity_of([lab.MASKS["scattered"](28)], 28)
    qkv = lab.random_qkv(5, 28, 4, 1, 32, torch.float32)
    runs = [kernel_tests.run_kernel(TritonKernel(), sparsity, qkv, 3, 1, 64) for _ in range(2)]
    for name in ("out", "lse", "dq", "dkv"):
        assert torch.equal(runs[0][name], runs[1][name])


def test_rows_that_see_nothing_and_keys_that_nobody_sees_give_exact_zeros(lab):
    mask = lab.MASKS["blind_rows"](40)
    qkv = lab.random_qkv(5, 40, 2, 1, 32, torch.float32)
    got = kernel_tests.run_kernel(TritonKernel(), lab.sparsity_of([mask], 16), qkv, seed=6)
    blind, unseen = ~mask.any(1), ~mask.any(0)
    assert (got["out"][blind] == 0).all()
    assert (got["dq"][blind] == 0).all()
    assert (got["lse"][blind] == -torch.inf).all()
    assert (got["dkv"][unseen] == 0).all()


@pytest.mark.parametrize(("dtype", "dim"), [(torch.float32, 96), (torch.float16, 32)])
def test_delta_is_that_of_float64(lab, dtype, dim):
    out, _, dout = lab.random_qkv(3, 21, 5, 1, dim, dtype)
    apart = dout.new_zeros(21, 7, dim)[:, 1:6].copy_(dout)
    expected = (out.double() * dout.double()).sum(-1)
    for given in (dout, apart):
        got = TritonKernel().delta(out, given)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)
    assert TritonKernel().delta(out[:0], dout[:0]).shape == (0, 5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_partial_results_are_merged_as_torch_merges_them(lab, dtype):
    def state_of(seed):
        out, _, lse = lab.random_qkv(seed, 21, 3, 1, 96, torch.float32)
        lse = 30 * lse[..., 0]
        blind = torch.arange(21) % (2 + seed) == 0  # rows that have seen no key so far
        out[blind], lse[blind] = 0, -torch.inf
        return AttentionState(out, lse)

    found, expected, part = state_of(0), state_of(0), state_of(1)
    part_out = part.out[:14].to(dtype)
    # Flash kernels give lse by heads, [Hq, rows].
    by_heads = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in (part_out, part.lse[:14]))
    TritonKernel().merge(found, 4, *by_heads)
    TritonKernel().merge(found, 4, part_out, part.lse[:14])
    TritonKernel().merge(found, 4, part_out[:0], part.lse[:0])
    for _ in range(2):
        expected.merge(4, part_out, part.lse[:14])
    torch.testing.assert_close(found.lse, expected.lse, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.out, expected.out, rtol=1e-6, atol=1e-6)
    assert torch.isneginf(found.lse).any()


def test_an_empty_table_changes_nothing(lab):
    sparsity = lab.sparsity_of([np.zeros((8, 8), bool)], 8)
    qkv = lab.random_qkv(5, 8, 2, 1, 32, torch.float32)
    got = kernel_tests.run_kernel(TritonKernel(), sparsity, qkv, seed=6)
    assert all((got[name] == 0).all() for name in ("out", "dq", "dkv"))


def test_the_interpreter_can_be_asked_for_by_name():
    assert choose_kernel(torch.float32, wanted="triton").kernel.name == "triton"
    assert choose_kernel(torch.float32).kernel.name == "cpu"  # never chosen for its speed


@pytest.fixture
def one_at_a_time(monkeypatch):
    """Let ranks take turns: the interpreter replaces parts of Triton while it runs."""
    lock = threading.Lock()
    for name in ("forward", "backward", "delta", "merge"):
        kernel = getattr(TritonKernel, name)

        def in_turn(*arguments, kernel=kernel):
            with lock:
                return kernel(*arguments)

        monkeypatch.setattr(TritonKernel, name, in_turn)


@pytest.mark.usefixtures("one_at_a_time")
def test_whole_plans_run_on_the_kernels(lab):
    """Tiles anywhere: queries and keys travel, and partial results of both."""
    masks = [lab.MASKS["streaming"](40), lab.MASKS["scattered"](17)]
    shape, cluster = ModelShape(2, 1, 32, 4), Cluster(devices_per_node=2)
    plan = placements.random_plan(lab, masks, shape, np.random.default_rng(1), cluster)
    assert {TransferKind.OUT, TransferKind.DKV} <= set(plan.transfers.kind.tolist())
    dense = np.zeros((57, 57), bool)
    dense[:40, :40], dense[40:, 40:] = masks
    lab.check_plan(plan, dense, 9, kernel="triton")


@pytest.mark.usefixtures("one_at_a_time")
def test_sums_that_kernels_begin_and_end_have_the_same_bits(lab, monkeypatch):
    plan = lab.plan_of(
        [("scattered", 24), ("blind_rows", 25)], 2, heads=(4, 2, 32), dtype_bytes=2, divisions=2
    )
    qkv = lab.random_qkv(9, 49, 4, 2, 32, torch.float16)
    got, _ = lab.run_in_threads(plan, *qkv, "triton")
    monkeypatch.setattr(TritonKernel, "finishes", frozenset())
    expected, _ = lab.run_in_threads(plan, *qkv, "triton")
    for name, values in expected.items():
        assert torch.equal(got[name], values), name


def test_keys_of_any_weight_are_as_exact_as_in_eager(lab):
    sparsity = lab.sparsity_of([lab.MASKS["blind_rows"](40)], 14)
    q, kv, dout = lab.random_qkv(3, 40, 4, 2, 32, torch.float64)
    case = test_precision.a_key_that_takes_almost_all
    q, k, v, sinks = test_precision.make_hard(case, (q, kv[:, 0], kv[:, 1]), torch.float32)
    got = kernel_tests.run_kernel(
        TritonKernel(), sparsity, (q, torch.stack([k, v], 1), dout.float()), 2, 3, 32
    )
    got = {"out": got["out"], "dq": got["dq"], "dk": got["dkv"][:, 0], "dv": got["dkv"][:, 1]}
    tensors, mask = (q, k, v, torch.full_like(sinks, -torch.inf)), kernel_tests.dense_of(sparsity)
    test_precision.assert_as_exact_as_eager(got, tensors, dout.float(), mask)


def test_parts_of_any_weight_keep_their_digits():
    def merge(out, lse, part, part_lse):
        triton_kernel.merge_rows(AttentionState(out, lse), 0, part, part_lse)

    test_precision.assert_merged_as_one(merge, 0)


def test_a_wide_cap_leaves_small_scores_their_digits(lab):
    """A cap of 50, as Gemma 2 has it, over scores of 1."""
    sparsity = lab.sparsity_of([lab.MASKS["causal"](40)], 40)
    qkv = lab.random_qkv(7, 40, 2, 1, 32, torch.float32)
    wide = [x.double() for x in qkv]
    exact, same = (
        kernel_tests.run_kernel(ReferenceKernel(50.0), sparsity, each, 3, 1, 32)
        for each in (wide, qkv)
    )
    got = kernel_tests.run_kernel(TritonKernel(50.0), sparsity, qkv, 3, 1, 32)
    for name in ("out", "dq", "dkv"):
        error, allowed = ((x[name].double() - exact[name]).norm() for x in (got, same))
        assert error < 2 * allowed, name
