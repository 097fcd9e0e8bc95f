"""Cross-compile our CUDA kernels to sm_90 and print shared memory and register spills as JSON."""

import json
import re
import subprocess
import tempfile
import warnings
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from dcp_runtime.kernels import triton_source
from dcp_runtime.kernels.triton_kernel import launch_shape

POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
TENSORS = ("q", "kv", "dout")
SUMS = ("out", "lse", "delta", "dq", "dkv")
STRIDES = ("q_row", "dout_row", "kv_row", "kv_half")
SPECIAL = {
    "scale": "fp32",
    "mask_start": "*i64",
    "bits": "*u8",
    "mask_columns": "i32",
    "num_keys": "i32",
}
# kernel, dtype, head_dim, whether tables hold bits, most bytes of spills
CASES = [
    ("forward", torch.bfloat16, 128, False, 0),
    ("dq", torch.bfloat16, 128, False, 0),
    ("dkv", torch.bfloat16, 128, False, 0),
    ("forward", torch.float16, 96, True, 0),
    ("dkv", torch.float16, 64, True, 0),
    ("dq", torch.float32, 64, False, 0),
]


def type_of(name, dtype):
    if name in TENSORS:
        return POINTERS[dtype]
    if name in SUMS:
        return "*fp32"
    if name in STRIDES:
        return "i32"
    return SPECIAL.get(name, "*i32")


def compile_one(name, dtype, dim, has_bits):
    function = getattr(triton_source, f"{name}_kernel")
    shape = launch_shape(name, dtype, dim, has_bits=has_bits)
    constants = {
        "HEADS": 8, "GROUP": 4, "DIM": dim, "DIM_PAD": 1 << (dim - 1).bit_length(),
        "BLOCK_M": shape.block_m, "BLOCK_N": shape.block_n, "HAS_BITS": has_bits,
    }  # fmt: skip
    names = function.arg_names
    signature = {n: "constexpr" if n in constants else type_of(n, dtype) for n in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if signature[n].startswith("*") or n in STRIDES
    }
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def spills_of(ptx):
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", source, "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return max(int(n) for n in re.findall(r"(\d+) bytes spill stores", done.stderr))


def main():
    warnings.simplefilter("ignore")  # Triton's own, about defaults of later versions
    found = []
    for name, dtype, dim, has_bits, most in CASES:
        compiled = compile_one(name, dtype, dim, has_bits)
        found.append({
            "kernel": name, "dtype": str(dtype), "head_dim": dim, "has_bits": has_bits,
            "shared_bytes": compiled.metadata.shared, "spill_bytes": spills_of(compiled.asm["ptx"]),
            "most_spill_bytes": most,
        })  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
