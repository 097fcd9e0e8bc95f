"""Compile the CUDA kernels without a GPU; report instructions, registers and spills.

``python runtime/benchmarks/bench_kernels.py [--json OUT]`` cross-compiles the Triton kernels and
reads their machine code with the disassembler that Triton carries; ``--table JSON`` prints the
tables of such a document. The loop over masked runs is the baseline in each row: before pieces were
cut into runs, all pairs but those of full pieces went through such a loop.
"""

import argparse
import contextlib
import io
import re
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
from recording import markdown, report, shown

from dcp_runtime.kernels import triton_source
from dcp_runtime.kernels.kernel import TensorKind, Work
from dcp_runtime.kernels.triton_kernel import LaunchShape, TritonKernel, launch_shape
from dcp_runtime.plans.device_plan import prepare_device

SCHEMA = "dcp.bench_kernels/2"
POINTERS = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
TENSORS = ("q", "kv", "dout", "result", "dk_result", "dv_result")
SUMS = ("out", "lse", "delta", "dq", "dkv")
STRIDES = ("q_row", "dout_row", "kv_row", "kv_half", "result_row")
SPECIAL = {
    "scale": "fp32",
    "softcap": "fp32",
    "mask_start": "*i64",
    "bits": "*u8",
    "mask_columns": "i32",
    "num_keys": "i32",
    "finishes": "i32",
    "opens": "i32",
    "closes": "i32",
}
GROUP = 4  # query heads of a kv head
ARCHS = (80, 89, 90, 100)  # compute capabilities times ten
CASES = [
    # kernel, dtype, head_dim, whether tables hold bits, compute capability
    ("forward", torch.bfloat16, 128, False, 90),
    ("dq", torch.bfloat16, 128, False, 90),
    ("dkv", torch.bfloat16, 128, False, 90),
    ("forward", torch.bfloat16, 64, False, 90),
    ("dkv", torch.bfloat16, 64, False, 90),
    ("forward", torch.float16, 96, True, 90),
    ("dq", torch.float16, 96, True, 90),
    ("dkv", torch.float16, 64, True, 90),
    ("dq", torch.float32, 64, False, 90),
    ("dkv", torch.float32, 64, True, 90),
    *((kernel, torch.bfloat16, 128, False, arch) for arch in (80, 89, 100)
      for kernel in ("forward", "dq", "dkv")),
]  # fmt: skip

HEAD_DIMS = (64, 96, 128)
MASKS = {"causal": "causal", "StreamingLLM 64 + 1,024": "streaming(64, 1024)"}
TOKENS, RANKS = 131_072, 8

Json = dict[str, Any]  # Any: a JSON document


def main() -> None:
    """Compile, print tables and write a JSON document, or print the tables of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", type=int, nargs="+", choices=ARCHS, default=ARCHS)
    parser.add_argument("--head-dim", type=int, nargs="+", choices=HEAD_DIMS, default=HEAD_DIMS)
    parser.add_argument("--masks", nargs="*", choices=MASKS, default=MASKS)
    report(parser, measure, to_table)


def measure(options: argparse.Namespace) -> Json:
    """Compile the cases of some compute capabilities and sizes, and cut some masks into runs."""
    warnings.simplefilter("ignore")  # Triton's own, about defaults of later versions
    rows = [
        compile_case(*case)
        for case in CASES
        if case[-1] in options.arch and case[2] in options.head_dim
    ]
    return {
        "schema": SCHEMA,
        "triton": triton.__version__,
        "kernels": rows,
        "tokens": TOKENS,
        "ranks": RANKS,
        "group": GROUP,
        "pairs": {name: pairs_of(MASKS[name]) for name in options.masks},
    }


def pairs_of(mask: str) -> list[list[int]]:
    """Count the pairs that forward computes in whole tiles and at edges, on one rank of a plan.

    The first two are those of tiles of one head, the others those of tiles that heads share.
    """
    # Machines that only run plans have no numba, and compile all the same.
    from dcp_dsl import Sample, Spec, block_sparsity
    from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan

    slabs = Spec.from_text("").mask(mask).bind(Sample(length=TOKENS))
    plan = build_plan(
        block_sparsity([slabs], 2048, 2048), ModelShape(32, 32 // GROUP, 128),
        Cluster(devices_per_node=RANKS), PlanConfig("static:zigzag"),
    )  # fmt: skip
    kernel, found = TritonKernel(), []
    tables = prepare_device(plan, 0, kernel.segment_rows).forward.tables
    for group in (1, GROUP):
        kind = TensorKind(torch.bfloat16, torch.device("cpu"), 128, group=group)
        work = sum((kernel.work(table, kind) for table in tables), Work())
        found.append([work.whole, work.edge])
    return found


def compile_case(kernel: str, dtype: torch.dtype, head_dim: int, has_bits: bool, arch: int) -> Json:
    """Compile one kernel and count what its loops hold."""
    shape = launch_shape(kernel, dtype, arch, GROUP, head_dim)
    log = io.StringIO()
    with knobs.nvidia.scope(), knobs.compilation.scope(), contextlib.redirect_stdout(log):
        # What lies in Triton's cache has no log of the assembler.
        knobs.nvidia.dump_ptxas_log = knobs.compilation.always_compile = True
        compiled = cross_compile(kernel, dtype, head_dim, has_bits, arch, shape)
    code = disassemble(compiled.asm["cubin"])
    counts = (r"Used (\d+) registers", r"(\d+) bytes spill stores")
    registers, spilled = (max(map(int, re.findall(c, log.getvalue()))) for c in counts)
    return {
        "kernel": kernel, "dtype": str(dtype).removeprefix("torch."), "head_dim": head_dim,
        "has_bits": has_bits, "arch": arch, "shape": [shape.block_m, shape.block_n],
        "edge": shape.edge, "warps": shape.warps, "stages": shape.stages,
        "shared_bytes": compiled.metadata.shared, "registers": registers,
        "spill_bytes": spilled, "loops": loops_of(code),
    }  # fmt: skip


def cross_compile(
    kernel: str, dtype: torch.dtype, head_dim: int, has_bits: bool, arch: int, shape: LaunchShape
) -> Any:  # Any: Triton has no types
    """Compile a kernel as the backend launches it, two groups of query heads."""
    function = getattr(triton_source, f"{kernel}_kernel")
    constants = {
        "HEADS": 2 * GROUP, "GROUP": GROUP, "DIM": head_dim,
        "DIM_PAD": 1 << (head_dim - 1).bit_length(), "BLOCK_M": shape.block_m,
        "BLOCK_N": shape.block_n, "EDGE": shape.edge, "HAS_BITS": has_bits,
        "CAPPED": False,
        **({} if kernel == "dkv" else {"PACK": shape.heads}),
    }  # fmt: skip
    names = function.arg_names
    signature = {n: "constexpr" if n in constants else _type_of(n, dtype) for n in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, n in enumerate(names)
        if signature[n].startswith("*") or n in STRIDES
    }
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=aligned)
    options = {"num_warps": shape.warps, "num_stages": shape.stages}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def disassemble(code: bytes) -> str:
    """Return the machine code of a kernel as text."""
    tool = Path(triton.__path__[0], "backends", "nvidia", "bin", "nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True)
    return done.stdout


def loops_of(code: str) -> list[Json]:
    """Count the instructions of the innermost loops with matrix products, in program order.

    On sm_80 to sm_90 a kernel has two: the first runs over whole runs, the second over masked ones.
    """
    labels = {m[1]: m.start() for m in re.finditer(r"^(\.L_x_\d+):", code, re.MULTILINE)}
    branches = re.finditer(r"BRA\S*\s+.*?`\((\.L_x_\d+)\)", code)
    spans = [(labels[m[1]], m.start()) for m in branches if labels.get(m[1], m.end()) < m.start()]
    products = [span for span in spans if _PRODUCT.search(code, *span)]
    inner = [s for s in products if not any(_is_inside(other, s) for other in products)]
    return [
        {
            "instructions": len(_INSTRUCTION.findall(code, *span)),
            "wgmma": code.count("HGMMA", *span),
            "mma": len(re.findall(r"\bHMMA", code[slice(*span)])),
            "spills": len(re.findall(r"\b(?:LDL|STL)", code[slice(*span)])),
        }
        for span in sorted(inner)
    ]


_PRODUCT = re.compile(r"HGMMA|HMMA")
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+\S", re.MULTILINE)


def _is_inside(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return inner != outer and outer[0] <= inner[0] and inner[1] <= outer[1]


def _type_of(name: str, dtype: torch.dtype) -> str:
    if name in TENSORS:
        return POINTERS[dtype]
    if name in SUMS:
        return "*fp32"
    return "i32" if name in STRIDES else SPECIAL.get(name, "*i32")


def to_table(document: Json) -> str:
    """Return a document as a Markdown table."""
    header = ["sm", "kernel", "type, head_dim", "rows x keys", "edge", "shared, KiB", "registers",
              "spilled, B", "instructions per pass, whole", "masked", "wgmma / mma"]  # fmt: skip
    lines = []
    for row in document["kernels"]:
        # Without tensor cores there is no loop to count.
        # Blackwell's products are asynchronous: its loops are cut where they wait.
        loops = row["loops"] if len(row["loops"]) == 2 else []
        cells = [str(loop["instructions"]) for loop in loops] or ["-", "-"]
        products = " / ".join(str(loops[0][k]) for k in ("wgmma", "mma")) if loops else "-"
        lines.append([
            str(row["arch"]), f"{row['kernel']}{', bits' if row['has_bits'] else ''}",
            f"{row['dtype']}, {row['head_dim']}", f"{row['shape'][0]} x {row['shape'][1]}",
            str(row["edge"]), shown(row["shared_bytes"], ".0f", 1 / 1024), str(row["registers"]),
            str(row["spill_bytes"]), *cells, products,
        ])  # fmt: skip
    whole, masked = (loop["instructions"] for loop in document["kernels"][0]["loops"])
    edge, step = document["kernels"][0]["edge"], document["kernels"][0]["shape"][1]
    kernels, lines = markdown(header, lines), []
    header = [f"{document['tokens']:,} tokens, {document['ranks']} ranks", "keys in whole passes",
              f"keys read by tiles that {document['group']} heads share",
              "instructions of their loops"]  # fmt: skip
    for name, pairs in document["pairs"].items():
        alone, shared = ([w + e, w / step * whole + e / edge * masked] for w, e in pairs)
        ratios = (f"{ours / theirs:.3f}" for ours, theirs in zip(shared, alone, strict=True))
        lines.append([name, f"{pairs[1][0] / shared[0]:.1%}", *ratios])
    return f"{kernels}\n\n{markdown(header, lines)}"


if __name__ == "__main__":
    main()
