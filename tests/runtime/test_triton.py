"""Our CUDA kernels without a GPU: the runs that their loops take, and what they compile to."""

import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from dcp_runtime.execute.passes import BackwardPass, ForwardPass
from dcp_runtime.kernels.kernel import AttentionState, QueryRows
from dcp_runtime.kernels.triton_inputs import key_runs, query_runs
from dcp_runtime.kernels.triton_kernel import TritonKernel, launch_shape, merge_rows
from dcp_runtime.plans.device_plan import prepare_device
from dcp_runtime.plans.tile_pieces import PieceKind
from dcp_runtime.plans.tile_table import TileTable


def random_table(rng, segments, keys):
    """A table of adjacent segments of 8 rows, each with disjoint pieces of all kinds."""
    row_ptr, pieces, ranges, bits = [0], [], [], []
    for _ in range(segments):
        ends = np.sort(rng.choice(np.arange(keys + 1), 2 * rng.integers(0, 4), replace=False))
        for first, last in ends.reshape(-1, 2).tolist():
            kind, size = int(rng.integers(0, 3)), last - first
            start = -1
            if kind == PieceKind.RANGES:
                start = 8 * len(ranges)
                wide = rng.integers(0, 2)
                low = (
                    rng.integers(0, size + 1, (4, 8))
                    if wide
                    else np.sort(rng.integers(0, 3, (4, 8)) + rng.integers(0, size, (4, 1)), axis=0)
                )
                ranges.append(np.minimum(np.sort(low, axis=0), size))
            if kind == PieceKind.BITS:
                start = sum(len(b) for b in bits)
                bits.append(np.packbits(rng.random((8, size)) < 0.7, axis=1).reshape(-1))
            pieces.append((first, size, kind, start))
        row_ptr.append(len(pieces))
    start, size, kind, mask = np.array(pieces, np.int64).reshape(-1, 4).T
    bounds = np.concatenate([np.zeros((4, 0), int), *ranges], axis=1)
    return TileTable(
        q_start=8 * rng.permutation(segments), q_len=np.full(segments, 8), row_ptr=row_ptr,
        kv_start=start, kv_len=size, kind=kind.astype(np.uint8), mask_start=mask,
        row_lo=bounds[::2], row_hi=bounds[1::2],
        bits=np.concatenate([np.zeros(0, np.uint8), *bits]), pairs=0,
    )  # fmt: skip


def counts_of(table, keys):
    """Count how often each pair of rows and keys stands in a table."""
    seen = np.zeros((8 * table.num_segments, keys), int)
    for segment, piece in pieces_of(table):
        q, k = table.q_start[segment], table.kv_start[piece]
        seen[q : q + 8, k : k + table.kv_len[piece]] += table.piece_mask(piece, 8)
    return seen


def pieces_of(table):
    for segment, span in enumerate(itertools.pairwise(table.row_ptr.tolist())):
        yield from ((segment, piece) for piece in range(*span))


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_keys_hold_every_pair_of_a_table_once(seed):
    table = random_table(np.random.default_rng(seed), 7, 90)
    for rows in (8, 3):
        runs, seen = query_runs(table, 4, rows), np.zeros((56, 90), int)
        for s, (q, size) in enumerate(zip(runs.q_start, runs.q_len, strict=True)):
            assert size <= rows
            for run in range(runs.row_ptr[s], runs.row_ptr[s + 1]):
                keys = slice(runs.begin[run], runs.end[run])
                mask, k = mask_of(table, runs, run, size), runs.kv_start[run]
                if run < runs.masked_ptr[s]:
                    assert mask[:, keys].all()
                    assert (keys.stop - keys.start) % 4 == 0
                seen[q : q + size, k + keys.start : k + keys.stop] += mask[:, keys]
        np.testing.assert_array_equal(seen, counts_of(table, 90))
        assert sorted(runs.order) == list(range(len(runs.q_start)))


def mask_of(table, runs, run, rows):
    """The mask of the piece that a run of keys is cut from, as a kernel reads it."""
    fields = {name: getattr(runs, name)[run : run + 1] for name in ("kv_len", "mask_start")}
    kind = runs.kind[run : run + 1].astype(np.uint8)
    zero = np.zeros(1, np.int32)
    piece = replace(
        table, q_start=zero, q_len=zero, row_ptr=[0, 1], kv_start=zero, kind=kind, **fields
    )
    return piece.piece_mask(0, rows)


@pytest.mark.parametrize("seed", range(12))
def test_runs_of_queries_hold_every_pair_of_a_table_once(seed):
    table = random_table(np.random.default_rng(seed), 7, 90)
    runs, seen = key_runs(table, 8, 16), np.zeros((56, 96), int)
    starts = {(int(table.q_start[s]), int(table.kv_start[p])): p for s, p in pieces_of(table)}
    for c, row in enumerate(runs.chunk_row.tolist()):
        for run in range(runs.chunk_ptr[c], runs.chunk_ptr[c + 1]):
            q, rows = int(runs.q_start[run]), int(runs.q_len[run])
            k, size = int(runs.kv_start[run]), int(runs.kv_len[run])
            if run < runs.masked_ptr[c]:
                assert (k, size, rows % 16) == (row, 8, 0)
                seen[q : q + rows, row : row + 8] += 1
                continue
            mask = np.zeros((rows, 96), int)
            is_full = runs.kind[run] == PieceKind.FULL  # also the last rows of many segments
            mask[:, k : k + size] = is_full or table.piece_mask(starts[q, k], 8)
            seen[q : q + rows, row : row + 8] += mask[:, row : row + 8]
    np.testing.assert_array_equal(seen[:, :90], counts_of(table, 90))
    assert sorted(runs.order) == list(range(len(runs.chunk_row)))


def test_a_causal_diagonal_and_both_edges_of_a_window_are_cut_off():
    row = np.arange(8)
    window = TileTable(
        q_start=[0], q_len=[8], row_ptr=[0, 1], kv_start=[0], kv_len=[40], kind=np.uint8([1]),
        mask_start=[0], row_lo=np.array([row, 0 * row]), row_hi=np.array([row + 33, 0 * row]),
        bits=np.zeros(0, np.uint8), pairs=8 * 33,
    )  # fmt: skip
    runs = query_runs(window, 8, 8)
    spans = list(zip(runs.begin.tolist(), runs.end.tolist(), strict=True))
    assert spans == [(7, 31), (0, 7), (31, 40)]
    assert (runs.row_ptr.tolist(), runs.masked_ptr.tolist()) == ([0, 3], [1])


def test_segments_of_no_rows_have_no_runs():
    zero, none = np.zeros((2, 0), int), np.zeros(0, np.uint8)
    table = TileTable(
        q_start=[0], q_len=[0], row_ptr=[0, 1], kv_start=[0], kv_len=[8], kind=np.uint8([1]),
        mask_start=[0], row_lo=zero, row_hi=zero, bits=none, pairs=0,
    )  # fmt: skip
    for runs in (query_runs(table, 8, 8), key_runs(table, 8, 8)):
        assert len(runs.order) == len(runs.kv_start) == 0


def test_chunks_far_behind_each_other_stay_in_order():
    far = 8 * 2**15  # its sort key takes more than 16 bits
    none = np.zeros((2, 0), int)
    table = TileTable(
        q_start=[0], q_len=[8], row_ptr=[0, 2], kv_start=[8, far], kv_len=[8, 8],
        kind=np.full(2, PieceKind.FULL, np.uint8), mask_start=[-1, -1], row_lo=none, row_hi=none,
        bits=np.zeros(0, np.uint8), pairs=128,
    )  # fmt: skip
    runs = key_runs(table, 8, 8)
    assert runs.chunk_row.tolist() == runs.kv_start.tolist() == [8, far]


def test_tiles_of_backward_are_smaller_where_operands_lie_in_registers():
    wide, narrow = (launch_shape("dkv", torch.bfloat16, arch).block_m for arch in (90, 80))
    assert (wide, narrow) == (64, 32)


BENCHMARK = Path(__file__).parents[2] / "runtime" / "benchmarks" / "bench_kernels.py"


@pytest.mark.parametrize("head_dims", [(128,), pytest.param((64, 96), marks=pytest.mark.slow)])
def test_loops_over_whole_runs_use_wgmma_alone_and_spill_nothing(tmp_path, start_python, head_dims):
    out, options = tmp_path / "kernels.json", ("--arch", 90, "--head-dim", *head_dims, "--masks")
    cache = {"folder": tmp_path, "TRITON_CACHE_DIR": str(tmp_path)}
    fork = start_python(BENCHMARK, "--json", out, *options, **cache)
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    found = json.loads(out.read_text())["kernels"]
    kernels = {entry["kernel"] for entry in found}
    assert kernels == {"forward", "dq", "dkv"}
    for entry in found:
        assert entry["shared_bytes"] <= 227 * 1024, entry
        if entry["dtype"] == "float32":  # no tensor cores at full precision
            assert not entry["loops"]
            continue
        whole, masked = entry["loops"]
        assert whole["wgmma"] > 0, entry
        assert whole["mma"] == masked["mma"] == 0, entry
        assert whole["spills"] == 0, entry
        # Of one row or key: the loops would be alike if whole runs were masked after all.
        size = entry["shape"][entry["kernel"] in ("forward", "dq")]
        assert whole["instructions"] / size < masked["instructions"] / entry["edge"] / 2, entry


FLOAT32 = """
import json, sys, warnings
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("ignore")  # Triton's own
import torch
from bench_kernels import compile_case
print(json.dumps(compile_case("dkv", torch.float32, 64, True, 90)))
"""


def test_dkv_in_float32_compiles_with_bits_and_spills_nothing(tmp_path, start_python):
    script = tmp_path / "compile.py"
    script.write_text(FLOAT32)
    fork = start_python(script, BENCHMARK.parent, folder=tmp_path, TRITON_CACHE_DIR=str(tmp_path))
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    found = json.loads(fork.out.read_text())
    assert (found["dtype"], found["has_bits"], found["spill_bytes"]) == ("float32", True, 0)


@pytest.fixture
def variants(monkeypatch):
    """Kernels that launches would compile: those of each name differ in what Triton compiles for.

    Triton compiles a kernel anew for an integer of 1, and for one that 16 divides.
    """
    found = defaultdict(set)

    def note(*, key, fn, **_):
        found[fn.name].add(key)
        return True  # as if it were compiled

    stand_in = SimpleNamespace(
        get_current_device=lambda: "no GPU",
        get_current_stream=lambda _: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
    )
    monkeypatch.setattr(driver, "_active", stand_in)  # `reset_active` would look for a GPU
    with knobs.runtime.scope():
        knobs.runtime.jit_cache_hook = note
        yield found


def test_batches_of_any_size_share_their_kernels(lab, variants):
    kernel = TritonKernel()
    for tokens in (1, 48, 64, 90):
        plan = lab.plan_of([("streaming", tokens)], heads=(4, 2, 64), dtype_bytes=2)
        part = prepare_device(plan, 0, kernel.segment_rows)
        q, dout = torch.zeros(2, tokens, 4, 64)
        kv = torch.zeros(tokens, 2, 2, 64)
        for finishes in (frozenset(), kernel.finishes):
            forward = ForwardPass(part, q, kv, finishes=finishes)
            for table in part.forward.tables:
                forward.attend(kernel, table)
            out, lse = forward.result()
            rows = QueryRows(q, dout, lse, kernel.delta(out, dout))
            backward = BackwardPass(part, rows, kv, finishes=finishes)
            for table in part.backward.tables:
                backward.attend(kernel, table)
        merge_rows(AttentionState(out.float(), lse), 0, out, lse)
    names = [f"{name}_kernel" for name in ("delta", "dkv", "dq", "forward", "merge")]
    assert {name: len(found) for name, found in sorted(variants.items())} == dict.fromkeys(names, 1)
