"""Compile flash-attn-4 for compute capability 9.0 ahead of `first_light.py`, without a GPU.

``python gpu/flash4_cache.py DIR`` runs the calls of all cases on tensors without memory, which
compiles every variant that they need, and leaves the object files in DIR. The package finds them
there (`FLASH_ATTENTION_CUTE_DSL_CACHE_DIR`) if Python's minor version and the versions of
flash-attn-4, nvidia-cutlass-dsl and apache-tvm-ffi are the same.
"""

import os
import sys
import time
from pathlib import Path

import torch
from cases import SHARED, SMALL, SPREAD, TIMED, Case
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from dcp_planner.plan import decode_part
from dcp_runtime.execute.passes import BackwardPass, ForwardPass, Pass
from dcp_runtime.kernels.flash import Flash4Kernel
from dcp_runtime.kernels.kernel import AttentionState, QueryRows, TensorKind
from dcp_runtime.plans.device_plan import prepare_device


class CallsOnly(Flash4Kernel):
    """The kernel without the merging of results, which Triton compiles on the machine."""

    def merge(self, state: AttentionState, start: int, out: Tensor, lse: Tensor) -> None:
        """Leave the state as it is."""


def main(folder: str) -> None:
    """Compile the kernels that the stages of `first_light.py` call."""
    # The package reads these when it is imported, which the first kernel does.
    os.environ |= {
        "FLASH_ATTENTION_ARCH": "sm_90",
        "CUTE_DSL_ARCH": "sm_90a",
        "FLASH_ATTENTION_NUM_SMS": "132",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(Path(folder).resolve()),
    }
    kernel = CallsOnly()
    for case in (*TIMED, *SPREAD, *SHARED, *SMALL):
        # The stage `kernels` compares both types for one head size.
        both = case in SMALL and case.head_dim == 128
        for dtype in (torch.bfloat16, torch.float16) if both else (torch.bfloat16,):
            start_s = time.monotonic()
            compile_calls(kernel, case, dtype)
            print(f"{case.name} {dtype}: {time.monotonic() - start_s:.1f} s", flush=True)


def compile_calls(kernel: Flash4Kernel, case: Case, dtype: torch.dtype) -> None:
    """Run forward and backward of all ranks of a case; tensors have shapes and no values."""
    (heads, kv_heads), size = case.heads, case.head_dim
    for rank, data in enumerate(case.parts()):
        part = prepare_device(decode_part(data).plan, rank, kernel.segment_rows)
        forward, backward = part.forward.tables, part.backward.tables
        kernel.load(forward, backward, TensorKind(dtype, torch.device("cpu"), size))
        with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
            q = torch.empty(part.num_local, heads, size, dtype=dtype)
            kv = torch.empty(part.num_local, 2, kv_heads, size, dtype=dtype)
            lse = torch.empty(part.num_local, heads)
            rows = QueryRows(q, q, lse, lse)
            passes: list[Pass] = [
                ForwardPass(part, q, kv, finishes=kernel.finishes),
                BackwardPass(part, rows, kv, finishes=kernel.finishes),
            ]
            for current in passes:
                for table in part.of(current.direction).tables:
                    current.attend(kernel, table)


if __name__ == "__main__":
    main(*sys.argv[1:])
