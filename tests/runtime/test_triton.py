"""Our CUDA kernels without a GPU: interpreted on the CPU, and cross-compiled to sm_90."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dcp_runtime.kernels.triton_inputs import cut_keys
from dcp_runtime.plans.tile_table import TileTable

HERE = Path(__file__).parent


def run(*command, **variables):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | variables, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_interpreted_kernels_pass_their_cases():
    out = run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        HERE / "triton_cases.py",
        TRITON_INTERPRET="1",
    )
    assert " passed" in out
    assert "skipped" not in out


def test_kernels_compile_for_sm_90_with_bounded_spills(tmp_path):
    found = json.loads(run(HERE / "triton_cross_compile.py", TRITON_CACHE_DIR=str(tmp_path)))
    assert {entry["kernel"] for entry in found} == {"forward", "dq", "dkv"}
    for entry in found:
        assert entry["shared_bytes"] <= 227 * 1024, entry
        assert entry["spill_bytes"] <= entry["most_spill_bytes"], entry


def random_table(rng, segments, keys):
    row_ptr, starts, lengths = [0], [], []
    for _ in range(segments):
        for _ in range(int(rng.integers(0, 4))):
            starts.append(int(rng.integers(0, keys - 1)))
            lengths.append(int(rng.integers(1, keys - starts[-1] + 1)))
        row_ptr.append(len(starts))
    count = len(starts)
    return TileTable(
        q_start=np.arange(segments) * 8, q_len=np.full(segments, 8), row_ptr=np.array(row_ptr),
        kv_start=np.array(starts, int), kv_len=np.array(lengths, int),
        kind=np.zeros(count, np.uint8), mask_start=np.full(count, -1),
        row_lo=np.zeros((2, 0), int), row_hi=np.zeros((2, 0), int), bits=np.zeros(0, np.uint8),
        pairs=8 * sum(lengths),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_key_chunks_hold_every_piece_once_per_chunk_that_it_meets(seed):
    rng = np.random.default_rng(seed)
    table = random_table(rng, 7, 50)
    chunks = cut_keys(table, 16)
    expected = []
    for segment in range(7):
        for piece in range(int(table.row_ptr[segment]), int(table.row_ptr[segment + 1])):
            first, last = (
                int(table.kv_start[piece]),
                int(table.kv_start[piece] + table.kv_len[piece]),
            )
            expected += [
                (c, segment, piece) for c in range(4) if first < 16 * c + 16 and last > 16 * c
            ]
    found = []
    for i, row in enumerate(chunks.chunk_row.tolist()):
        part = slice(int(chunks.chunk_ptr[i]), int(chunks.chunk_ptr[i + 1]))
        pairs = zip(chunks.segment[part].tolist(), chunks.piece[part].tolist(), strict=True)
        found += [(row // 16, segment, piece) for segment, piece in pairs]
    assert found == sorted(expected)
