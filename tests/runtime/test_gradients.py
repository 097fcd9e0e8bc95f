"""Gradients, parameter by parameter: every way to train in parallel against dense attention.

``test_gradients.py FOLDER`` runs a small GPT on four gloo ranks, which are forks. Every way to
train in parallel takes the same steps; rank 0 writes what each gives beside dense attention.
"""

import json
import re
import sys
from contextlib import nullcontext
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
import torch._dynamo  # FSDP loads it; here it is loaded once for all ranks
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from dense_oracle import attend
from gpt import GPT, GPTConfig
from loader_options import make_loader
from train_gpt import dcp_attention, make_model

from dcp_dsl import Spec
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPExecutor, RunError, sum_gradients

RANKS, SEED = 4, 5
CONFIG = GPTConfig(layers=2, width=32, vocabulary=50)
WINDOW = 9
SPEC = Spec.from_text(f"mask local = causal and q - k < {WINDOW}")
LENGTHS = (31, 20, 12, 40, 17, 25)
ROWS = [{"tokens": [(7 * n + 3 * i * i) % 50 for i in range(n)]} for n in LENGTHS]
BATCHES = [[0], [1, 2], [3], [4, 5]]  # packs of at most 50 tokens, in order
WAYS = ("replicate", "ddp", "fsdp", "fsdp, dp x cp", "fsdp blocks")
STEPS = ("one batch", "two batches, synchronised once", "two batches, clipped")
NOT_CLIPPED = (STEPS[-1], "fsdp blocks")  # torch has no norm of shards and of whole tensors


def batches_of(way, step):
    """The batches of one step; two replicas take twice as many."""
    return BATCHES[: (2 if has_replicas(way) else 1) * (1 if step == "one batch" else 2)]


def num_targets(batches):
    return sum(LENGTHS[row] - 1 for batch in batches for row in batch)


@cache
def dense_gradients(count):
    """Every row on its own, every pair of tokens computed and hidden by a mask; loss by hand."""
    torch.manual_seed(SEED)
    model = GPT(CONFIG)
    for batch in BATCHES[:count]:
        for row in batch:
            tokens = torch.tensor(ROWS[row]["tokens"])
            q, k = torch.arange(len(tokens))[:, None], torch.arange(len(tokens))
            mask = ((k <= q) & (q - k < WINDOW)).numpy()
            logits = model(tokens, k, lambda layer, q, kv, mask=mask: attend(q, kv, mask)[0])
            logprobs = torch.log_softmax(logits[:-1], -1)
            picked = logprobs[torch.arange(len(tokens) - 1), tokens[1:]]
            (-picked.sum() / num_targets(BATCHES[:count])).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def make(way, mesh):
    if way == "fsdp blocks":  # nobody holds the embedding and the last layer
        model = make_model(CONFIG, "replicate", SEED)
        for block in model.blocks:
            fully_shard(block)
        sum_gradients(model)
        return model
    parallel = way.split(",")[0]
    model = make_model(CONFIG, parallel, SEED, mesh if has_replicas(way) else None)
    return DistributedDataParallel(model) if way == "ddp" else model


def has_replicas(way):
    return "dp" in way.split()


def without_sync(model, way):
    """Let a backward leave the gradients of the ranks as they are."""
    if way == "ddp":
        return model.no_sync()
    if way.startswith("fsdp"):
        set_sync(model, False)
    return nullcontext()


def set_sync(model, value):
    for module in (model, *model.blocks):
        if isinstance(module, FSDPModule):
            module.set_requires_gradient_sync(value, recurse=False)


def load(batches, **options):
    """Return a loader, whose later iterations take the plans of the first one."""
    shape = ModelShape(CONFIG.q_heads, CONFIG.kv_heads, CONFIG.head_dim, 8)
    return make_loader(
        ROWS[: batches[-1][-1] + 1], SPEC.mask("local"), token_budget=50, shape=shape, block_size=8,
        config=PlanConfig("static:zigzag"), **options,
    )  # fmt: skip


@cache
def loader_of(count, mesh):
    """The loader of one step's batches; of a mesh, those of this rank's replica."""
    if mesh is None:
        return load(BATCHES[:count])
    return load(BATCHES[:count], group=mesh, micro_batches=count // 2, balance="order")


def gradients(way, step, mesh, executors):
    """Take the backward passes of a step; give full gradients by name, and their norm."""
    model, batches = make(way, mesh), batches_of(way, step)
    loader = loader_of(len(batches), mesh if has_replicas(way) else None)
    last = len(loader) - 1
    make_attention = dcp_attention(executors[has_replicas(way)])
    for number, (data, plan) in enumerate(loader):
        attention = make_attention(data, plan)
        later = step.endswith("once") and number < last
        with without_sync(model, way) if later else nullcontext():
            logits = model(data.tokens, data.position_ids, attention)
            loss = functional.cross_entropy(logits, data.labels, reduction="sum")
            (loss / num_targets(batches)).backward()
        if later and way.startswith("fsdp"):
            set_sync(model, True)
    sum_gradients(model)
    norm = None
    if step.endswith("clipped"):
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), limit(batches), foreach=True)
    found = {n.removeprefix("module."): full(p.grad) for n, p in model.named_parameters()}
    return found, None if norm is None else float(full(norm))


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def norm_of(gradients):
    return float(torch.cat([g.flatten() for g in gradients.values()]).norm())


def limit(batches):
    return norm_of(dense_gradients(len(batches))) / 3


def ratios(found, wanted):
    """Of each parameter: ||found|| / ||wanted||, and ||found - wanted|| / ||wanted||."""
    assert found.keys() == wanted.keys()
    return {
        name: [float(found[name].norm() / g.norm()), float((found[name] - g).norm() / g.norm())]
        for name, g in wanted.items()
    }


def refusals():
    """Collect the refusals of `sum_gradients`, the same on all ranks."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    cases = {
        "nothing": (GPT(CONFIG), lambda model: None),
        "twice": (GPT(CONFIG), lambda model: (backward(model), sum_gradients(model))),
        # Between the calls only rank 0 has tokens, and a gradient.
        "twice, ranks without tokens": (
            GPT(CONFIG),
            lambda model: (
                backward(model),
                sum_gradients(model),
                dist.get_rank() or backward(model),
            ),
        ),
        "late": (fully_shard(GPT(CONFIG)), backward),
        "part": (
            DistributedDataParallel(GPT(CONFIG), process_group=pairs[dist.get_rank() // 2]),
            backward,
        ),
    }
    said = {}
    for name, (model, before) in cases.items():
        before(model)
        try:
            sum_gradients(model)
        except RunError as error:
            said[name] = str(error)
    return said


def backward(model):
    tokens = torch.arange(4)
    model(tokens, tokens, lambda layer, q, kv: q).sum().backward()


def odd_gradients():
    """Sum gradients that only some ranks have, that none has, that are sparse, and over a group."""
    rank = dist.get_rank()
    rows, alone, unused = torch.nn.Embedding(3, 1, sparse=True), torch.ones(2), torch.ones(2)
    rows.alone, rows.unused = map(torch.nn.Parameter, (alone, unused))
    rows.weight.grad = torch.sparse_coo_tensor(
        [[rank % 3]], [[1.0 + rank]], (3, 1), check_invariants=True
    )
    if rank == 1:
        rows.alone.grad = torch.full((2,), 5.0)
    sum_gradients(rows)
    found = {"sparse": rows.weight.grad.flatten().tolist(), "alone": rows.alone.grad.tolist()}
    found["unused"] = rows.unused.grad
    # Replicas hold the same weights under FSDP: nobody sums over the two ranks of a column.
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    layer = fully_shard(torch.nn.Linear(2, 2, bias=False), mesh=mesh["dp"])
    sum_gradients(layer)
    layer(torch.full((1, 2), 1.0 + rank)).sum().backward()
    sum_gradients(layer, mesh["cp"])
    found["over a group"] = full(layer.weight.grad).flatten().tolist()
    try:
        sum_gradients(layer, mesh["cp"])
    except RunError as error:
        found["over a group, twice"] = str(error)
    return found


def run(rank, folder):
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/store", RANKS), rank=rank, world_size=RANKS
    )
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    executors = [DCPExecutor(timeout_s=60), DCPExecutor(mesh["cp"], timeout_s=60)]
    result = {"refusals": refusals(), "odd": odd_gradients()}
    for step in STEPS:
        for way in WAYS:
            if (step, way) == NOT_CLIPPED:
                continue
            batches = batches_of(way, step)
            found, norm = gradients(way, step, mesh, executors)
            wanted = dense_gradients(len(batches))
            entry = {}
            if norm is not None:
                whole = norm_of(wanted)
                entry["norm"] = norm / whole
                wanted = {n: g * (limit(batches) / (whole + 1e-6)) for n, g in wanted.items()}
            entry["dense"] = ratios(found, wanted)
            if way == "replicate":
                replicated = found
            elif batches == batches_of("replicate", step):
                entry["replicated"] = ratios(found, replicated)
            result[f"{step}: {way}"] = entry
    if rank == 0:
        Path(folder, "result.json").write_text(json.dumps(result))
    for executor in executors:
        executor.close()
    dist.destroy_process_group()


PARAMETERS = 2 * 7 + 3
EXACT = 1e-12
"""Relative; the gradients are float64, and sums over ranks round in another order."""


@pytest.fixture(scope="module")
def result(tmp_path_factory, start_python):
    """Run all scenarios once, on four processes of one world."""
    folder = tmp_path_factory.mktemp("gradients")
    fork = start_python(__file__, folder, folder=folder, PYTHONWARNINGS="error")
    assert fork.wait(280) == 0, fork.err.read_text()[-3000:]
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


@pytest.mark.dist
@pytest.mark.parametrize(
    ("step", "way"), [case for case in product(STEPS, WAYS) if case != NOT_CLIPPED]
)
def test_gradients_are_those_of_dense_attention_and_of_replicated_weights(result, step, way):
    found = result[f"{step}: {way}"]
    for kind in ("dense", *["replicated"] * (way in ("ddp", "fsdp", "fsdp blocks"))):
        assert len(found[kind]) == PARAMETERS
        for name, (ratio, error) in found[kind].items():
            assert ratio == pytest.approx(1, rel=EXACT), name
            assert error < EXACT, name
    assert ("norm" in found) == step.endswith("clipped")
    assert found.get("norm", 1) == pytest.approx(1, rel=EXACT)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("nothing", r"no rank has a gradient to sum: .* after loss\.backward\(\)"),
        ("twice", "called before, after the same backward: .* call it once a step"),
        ("twice, ranks without tokens", "called before, after the same backward"),
        ("late", "FSDP has taken the mean .* once after the last fully_shard, before the first"),
        ("part", r"DistributedDataParallel covers 2 of 4 ranks: .* sum_gradients\(model, group="),
    ],
)
def test_gradients_that_are_no_sums_afterwards_are_refused(result, case, says):
    assert re.search(says, result["refusals"][case])


@pytest.mark.dist
def test_gradients_of_some_ranks_are_summed_and_those_of_none_stay_none(result):
    assert "call it once a step" in result["odd"].pop("over a group, twice")
    # Ranks 0 and 3 have row 0: 1 + 4.
    assert result["odd"] == {
        "sparse": [5.0, 2.0, 3.0], "alone": [5.0, 5.0], "unused": None,
        "over a group": [10.0] * 4,
    }  # fmt: skip


def test_every_fsdp_module_gets_both_switches_if_torch_has_them(monkeypatch):
    """With gloo the first alone makes sums; reduce-scatter of other backends needs the second."""
    given = []

    class FSDPLinear(FSDPModule, torch.nn.Linear):
        def set_gradient_divide_factor(self, factor):
            given.append((self, "divide by", factor))

        def set_force_sum_reduction_for_comms(self, enable):
            given.append((self, "sum", enable))

    modules = [torch.nn.Linear(2, 2).requires_grad_(False) for _ in range(2)]
    for module in modules:
        module.__class__ = FSDPLinear
    sum_gradients(torch.nn.Sequential(modules[0], torch.nn.ReLU(), torch.nn.Sequential(modules[1])))
    assert given == [
        call for module in modules for call in ((module, "divide by", 1.0), (module, "sum", True))
    ]
    modules[0].__class__ = type("FSDPLinear", (FSDPModule, torch.nn.Linear), {})
    monkeypatch.delattr(FSDPModule, "set_force_sum_reduction_for_comms")
    with pytest.raises(RunError, match=r"have set_force_sum_reduction_for_comms, got torch 2\."):
        sum_gradients(modules[0])
    with pytest.raises(RunError, match="expected a model, got list"):
        sum_gradients([])


if __name__ == "__main__":
    torch.set_num_threads(1)
    next(iter(load([[0]])))  # the ranks inherit the planner's compiled loops
    mp.start_processes(run, (sys.argv[1],), RANKS, start_method="fork")
