"""Load balancers of PyTorch's context parallel on the recorded batches, and what block masks cost.

    python runtime/benchmarks/bench_context_parallel.py --json OUT     # --table OUT prints tables

Head-tail, per-document head-tail and PTRR are torch's own classes. Every order of tokens is judged
alike: blocks of 128 x 128 places that hold a visible pair, pairs, and key blocks of other ranks
that a rank's queries meet, counted exactly. Documents are padded where a balancer wants that. A
stack of two masks is balanced by its first where a balancer takes one. `create_block_mask` runs as
torch's context parallel calls it, compiled, for one rank; CPU seconds of a warm call.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _attention, _load_balancer
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "planner" / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dcp_dsl" / "benchmarks"))
import recorded_masks
from recorded_masks import sequences_of
from recording import geomean, machine, markdown, provenance, report, shown

from dcp_dsl import Form, Slabs, block_sparsity
from dcp_runtime import DCPLoadBalancer, flex_block_mask, flex_mask_mod

SCHEMA = "dcp.bench_context_parallel/1"
DATA = Path(recorded_masks.__file__).parent / "data" / "workloads.json"
BLOCK, RANKS = 128, (8, 32)
NAMES = ("head-tail", "per-document head-tail", "PTRR", "DCPLoadBalancer")
STACK = ("causal", "lambda")
TIMED = (("causal", 32_768), ("lambda", 32_768), ("shared_question", 32_768), ("causal", 131_072))

Json = dict[str, Any]  # Any: a JSON document


def main() -> None:
    """Measure and write a JSON document, or print the tables of one."""
    parser = argparse.ArgumentParser(description=__doc__)
    report(parser, run, to_table)


def run(options: argparse.Namespace) -> Json:
    """Measure; return the document."""
    torch.set_num_threads(1)
    workloads = json.loads(DATA.read_text())["workloads"]
    return {"schema": SCHEMA, "machine": machine(), "torch": torch.__version__,
                "balance": balance_rows(workloads), "seconds": seconds_rows()}  # fmt: skip


def balance_rows(workloads: Sequence[Json]) -> list[Json]:
    """Judge every balancer on every batch, and on the stack of each batch of causal masks."""
    rows = []
    for workload in workloads:
        other = {"mask": STACK[1], "mask_params": {"n_starting": 64, "l_pretrain": 4096}}
        cases = [(workload["mask"], [workload])]
        if workload["mask"] == STACK[0]:
            cases.append(("stack", [workload, {**workload, **other}]))
        for kind, layers in cases:
            batch = [sequences_of(layer) for layer in layers]
            for ranks in RANKS:
                rows += [
                    {"batch": workload["id"], "kind": kind, "ranks": ranks, "balancer": name,
                     **judged(name, batch, ranks)}
                    for name in NAMES
                ]  # fmt: skip
    return rows


def judged(name: str, batch: Sequence[Sequence[Slabs]], ranks: int) -> Json:
    """Return the largest share of work over the mean, of the worst mask, and the keys needed."""
    unit = 2 * ranks if name.startswith("per-document") else 1
    packed = [pack(masks, unit, ranks * BLOCK) for masks in batch]
    documents = [-(-mask.num_tokens // unit) * unit for mask in batch[0]]
    documents.append(packed[0].num_tokens - sum(documents))
    order = order_of(name, packed, [d for d in documents if d], ranks)
    found = [cost(mask, order, ranks) for mask in packed]
    needed = np.logical_or.reduce([sees for _, _, sees in found])
    share = len(order) // BLOCK // ranks
    for rank in range(ranks):
        needed[rank, rank * share : (rank + 1) * share] = False  # its own
    return {
        "tokens": len(order),
        "blocks": max(float(blocks.max() / blocks.mean()) for blocks, _, _ in found),
        "pairs": max(float(pairs.max() / pairs.mean()) for _, pairs, _ in found),
        "needed": float(needed.sum() / (ranks - 1) / len(order) * BLOCK),
    }


def pack(masks: Sequence[Slabs], unit: int, whole: int) -> Slabs:
    """Pack the masks of documents, each padded to a multiple of a unit, all to another."""
    padded = [Slabs(-(-m.num_tokens // unit) * unit, *m.table().T) for m in masks]
    length = sum(mask.num_tokens for mask in padded)
    return block_sparsity([*padded, Slabs(-length % whole, *[[]] * 6)], whole, whole).slabs


def order_of(
    name: str, packed: Sequence[Slabs], documents: list[int], ranks: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the token at each place."""
    tokens = packed[0].num_tokens
    makers: Mapping[str, Callable[[], Any]] = {
        "head-tail": lambda: _load_balancer._HeadTailLoadBalancer(tokens, ranks, "cpu"),
        "per-document head-tail": lambda: _load_balancer._PerDocumentHeadTailLoadBalancer(
            [documents], ranks, "cpu"
        ),
        "PTRR": lambda: _load_balancer._PTRRLoadBalancer(flex_block_mask(packed[0]), ranks),
        "DCPLoadBalancer": lambda: DCPLoadBalancer([packed], ranks),
    }
    return np.asarray(makers[name]()._generate_indices()[0].numpy().astype(np.int64))


def cost(mask: Form, order: Any, ranks: int) -> tuple[Any, Any, Any]:  # Any: arrays
    """Return blocks and pairs of every rank, and bool ``[ranks, blocks]``: keys that it meets."""
    count = len(order) // BLOCK
    places = np.argsort(order) // BLOCK  # of each token: its block, once moved
    cuts = np.flatnonzero(np.diff(places)) + 1
    bounds = np.concatenate([[0], cuts, [len(order)]])
    found, moved = mask.count_blocks(bounds, bounds), places[bounds[:-1]]
    met = np.zeros((count, count), np.bool_)
    met[moved[found.row], moved[found.col]] = True
    rank = moved[found.row] // (count // ranks)
    by_rank = met.reshape(ranks, count // ranks, count)
    pairs = np.bincount(rank, found.pairs, ranks)
    return by_rank.sum((1, 2)), pairs, by_rank.any(1)


def seconds_rows() -> list[Json]:
    """Time the block mask of a rank of eight, ours and torch's, in the same order of tokens."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS[0])
    mesh = init_device_mesh("cpu", (RANKS[0],))
    rows = []
    for kind, tokens in TIMED:
        workload = {"id": kind, "mask": kind, "seqlens": [tokens // 4, tokens // 2, tokens // 4],
                    "mask_params": PARAMETERS[kind]}  # fmt: skip
        packed = pack(sequences_of(workload), 1, tokens)
        balancer = DCPLoadBalancer([[packed]], mesh)
        mod = flex_mask_mod(packed)
        timed = {
            "balancer_s": seconds(lambda packed=packed: DCPLoadBalancer([[packed]], mesh), 5),
            "ours_s": seconds(balancer.block_mask, 5),
            "torch_s": seconds(
                lambda mod=mod, tokens=tokens, balancer=balancer: _attention._create_cp_block_mask(
                    mod, 1, 1, tokens, tokens, mesh, balancer
                ),
                3 if tokens < 65_536 else 1,
            ),
        }
        rows.append({"mask": kind, "tokens": tokens, **timed})
    dist.destroy_process_group()
    return rows


PARAMETERS = {
    "causal": {},
    "lambda": {"n_starting": 64, "l_pretrain": 4096},
    "shared_question": {"question_proportion": 0.2, "n_answers": 4},
}


def seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median CPU time of warm calls."""
    run()
    found = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return statistics.median(found)


def to_table(document: Json) -> str:
    """Return the tables of a document."""
    header = ["balancer", "ranks", "blocks, max/mean", "worst", "pairs, max/mean", "worst",
              "keys needed of those gathered"]  # fmt: skip
    tables = []
    for title, is_stack in (("one mask", False), ("stack of two masks", True)):
        rows = [row for row in document["balance"] if (row["kind"] == "stack") == is_stack]
        lines = [line_of(rows, name, ranks) for ranks in RANKS for name in NAMES]
        batches = len({row["batch"] for row in rows})
        tables.append(markdown([f"{title}, {batches} batches", *header[1:]], lines))
    lines = [
        [f"{row['mask']}, 3 documents", f"{row['tokens']:,}", shown(row["balancer_s"], ".1f", 1e3),
         shown(row["ours_s"], ".1f", 1e3), shown(row["torch_s"], ",.0f", 1e3)]
        for row in document["seconds"]
    ]  # fmt: skip
    header = ["mask, 8 ranks", "tokens", "balancer, ms", "block_mask, ms", "create_block_mask, ms"]
    text = f"torch {document['torch']}, CPU time"
    return "\n\n".join([*tables, markdown(header, lines)]) + "\n" + provenance(document, text)


def line_of(rows: Sequence[Json], name: str, ranks: int) -> list[str]:
    """Return a balancer's line."""
    mine = [row for row in rows if row["balancer"] == name and row["ranks"] == ranks]
    shares = [
        shown(value, ".3f")
        for key in ("blocks", "pairs")
        for value in (geomean(row[key] for row in mine), max(row[key] for row in mine))
    ]
    needed = statistics.fmean(row["needed"] for row in mine)
    return [name, str(ranks), *shares, f"{100 * needed:.0f} %"]


if __name__ == "__main__":
    main()
