"""Gradients of global batches on eight processes, policy by policy, against dense attention.

``test_step_gradients.py FOLDER [all]`` deals the same rows to two replicas of four ranks and to
four of two, which are forks; rank 0 writes how far the summed gradients are from those of dense
attention, row by row in one process.
"""

import json
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from dense_oracle import attend
from gpt import GPT, GPTConfig
from loader_options import POLICIES, make_loader

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, next_token_loss, sum_gradients

RANKS, SEED, BUDGET = 8, 5, 48
CONFIG = GPTConfig(layers=2, width=32, vocabulary=50)
SPEC = Spec.from_text(
    "segment s = part[parts]*\n"
    "mask band = causal and q - k < 9\n"
    "mask own = causal and same(part)\n"
    "stack mixed = band, causal\n"
)
LENGTHS = (48, 31, 5, 20, 12, 40, 7, 7, 3, 17, 25, 1, 30, 2, 11)
SHORT = (48, 9)
"""Fewer rows than micro-batches of all replicas: some ranks have no token."""
DEFAULT = (
    ("4x2", "work", "mixed rows"), ("4x2", "all", "mixed rows"),
    ("4x2", "per_document", "mixed rows"), ("2x4", "order", "causal"),
    ("2x4", "window", "stack"), ("4x2", "work", "empty ranks"),
)  # fmt: skip


def rows_of(lengths):
    return [
        {"tokens": [(7 * n + 3 * i * i) % 50 for i in range(n)], "parts": [n - n // 3, n // 3]}
        for n in lengths
    ]


def masks_of(name, row):
    """Name the masks of layer 0 and layer 1 of a row."""
    if name == "causal":
        return ("causal", "causal")
    if name == "stack":
        return ("band", "causal")
    return (("band",) * 2, ("own",) * 2, ("causal",) * 2)[len(row["tokens"]) % 3]


def mask_fn(name):
    if name == "stack":
        return SPEC.stack("mixed")
    return lambda row: SPEC.mask(masks_of(name, row)[0])


def seen_by(mask, row):
    """The mask pair by pair, by what its name says."""
    n = len(row["tokens"])
    q, k = torch.arange(n)[:, None], torch.arange(n)
    if mask == "band":
        return (k <= q) & (q - k < 9)
    border = row["parts"][0]
    return (k <= q) & ((q < border) == (k < border)) if mask == "own" else k <= q


def targets_of(row, name):
    """Tokens that the one before predicts and sees in some layer."""
    n, border = len(row["tokens"]), row["parts"][0]
    return [i for i in range(1, n) if not (i == border and masks_of(name, row)[0] == "own")]


@cache
def dense_gradients(lengths, name):
    """Every row on its own, every pair of tokens computed and hidden by a mask; loss by hand."""
    torch.manual_seed(SEED)
    model, rows = GPT(CONFIG), rows_of(lengths)
    count = sum(len(targets_of(row, name)) for row in rows)
    for row in rows:
        seen = [seen_by(mask, row).numpy() for mask in masks_of(name, row)]
        tokens = torch.tensor(row["tokens"])
        at = torch.tensor(targets_of(row, name), dtype=torch.long)

        def attention(layer, q, kv, seen=seen):
            return attend(q, kv, seen[layer])[0]

        logits = model(tokens, torch.arange(len(tokens)), attention)
        logprobs = torch.log_softmax(logits[at - 1], -1)
        (-logprobs[torch.arange(len(at)), tokens[at]].sum() / count).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def run_case(mesh, executors, policy, name, lengths):
    """Run an epoch; of every global batch the error of its summed gradients, and who was empty."""
    torch.manual_seed(SEED)
    model = GPT(CONFIG)
    loader = make_loader(
        rows_of(lengths), mask_fn(name), token_budget=BUDGET, micro_batches=2, block_size=8,
        shape=ModelShape(CONFIG.q_heads, CONFIG.kv_heads, CONFIG.head_dim, 4), mesh=mesh,
        config=PlanConfig("static:zigzag"), hidden_targets="leave_out", **POLICIES[policy],
    )  # fmt: skip
    found, mine, empty = [], [], 0
    for data, plan in loader:
        layers = LayerPlans.prepare(executors[plan.num_devices], plan)
        logits = model(
            data.tokens,
            data.position_ids,
            lambda layer, q, kv, plans=layers: DCPAttn.apply(plans.of(layer), q, kv),
        )
        next_token_loss(logits, data).backward()
        mine += data.rows
        empty += not len(data.tokens)
        if data.ends_step:
            sum_gradients(model)
            found.append(compare(model, mine, name, lengths))
            model.zero_grad()
            mine = []
    every = [None] * RANKS
    dist.all_gather_object(every, (len(loader), empty))
    return {
        "errors": found,
        "rows": len(lengths),
        "counts": [count for count, _ in every],
        "empty": sum(none for _, none in every),
    }


def compare(model, mine, name, lengths):
    """Compare with dense gradients of the rows that some rank had; also how many these are."""
    every = [None] * RANKS
    dist.all_gather_object(every, mine)
    rows = sorted({row for own in every for row in own})
    if dist.get_rank():
        return None
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    wanted = dense_gradients(tuple(lengths[row] for row in rows), name)
    return [float((found - wanted).norm() / wanted.norm()), rows]


def run(rank, folder, cases):
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS
    )
    meshes = {
        name: init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "cp"))
        for name, sizes in {"2x4": (2, 4), "4x2": (4, 2)}.items()
    }
    whole = DCPExecutor(timeout_s=100)
    executors = {
        name: {8: whole, mesh.size(1): DCPExecutor(mesh["cp"], timeout_s=100)}
        for name, mesh in meshes.items()
    }
    result = {}
    for shape, policy, name in cases:
        lengths = SHORT if name == "empty ranks" else LENGTHS
        case = run_case(meshes[shape], executors[shape], policy, name, lengths)
        result[f"{shape}, {policy}, {name}"] = case
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    for executor in {id(e): e for own in executors.values() for e in own.values()}.values():
        executor.close()
    dist.destroy_process_group()


EXACT = 1e-5
"""Relative, float32."""


def result_of(folder, start_python, *arguments):
    fork = start_python(__file__, folder, *arguments, folder=folder)
    assert fork.wait(280 if not arguments else 1200) == 0, fork.err.read_text()[-3000:]
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def check(result):
    for name, case in result.items():
        rows = [row for _, own in case["errors"] for row in own]
        assert sorted(rows) == list(range(case["rows"])), name
        assert len(set(case["counts"])) == 1, name
        for error, _ in case["errors"]:
            assert error < EXACT, name


@pytest.mark.dist
def test_summed_gradients_of_a_global_batch_are_those_of_dense_attention(tmp_path, start_python):
    result = result_of(tmp_path, start_python)
    assert len(result) == 6
    check(result)
    assert result["4x2, work, empty ranks"]["empty"] >= 8
    moved = [own for _, own in result["2x4, window, stack"]["errors"]]
    assert len(moved) == 2
    assert sorted(moved[0] + moved[1]) != moved[0] + moved[1]  # rows changed their global batch


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(1300)
def test_every_policy_under_every_mask_has_the_gradients_of_dense_attention(tmp_path, start_python):
    result = result_of(tmp_path, start_python, "all")
    assert len(result) == 2 * 6 * 4
    check(result)


if __name__ == "__main__":
    torch.set_num_threads(1)
    every = [
        (shape, policy, name)
        for shape in ("2x4", "4x2")
        for policy in POLICIES
        for name in ("causal", "mixed rows", "stack", "empty ranks")
    ]
    chosen = every if sys.argv[2:] == ["all"] else DEFAULT
    next(iter(make_loader(rows_of([9]), SPEC.mask("own"), hidden_targets="keep")))  # compiles
    mp.start_processes(run, (sys.argv[1], chosen), RANKS, start_method="fork")
