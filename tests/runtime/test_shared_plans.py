"""One rank plans for all: every rank gets its part of the same plan, or is told why not."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.dist

SCRIPT = '''
import os, signal, sys, time, warnings
import torch, torch.distributed as dist
from dcp_dsl import DatasetError, Mask, Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, digest
from dcp_planner.plan import PlanPart
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, RunError, StackedPlans
sys.path.insert(0, HERE)
from loader_options import make_loader

dist.init_process_group("gloo")
rank = dist.get_rank()
MASK = Spec.from_text("mask band = causal and q - k < 30").mask("band")
ROWS = [{"tokens": list(range(n))} for n in (60, 50, 40, 30, 64)]
OPTIONS = dict(token_budget=64, block_size=8, shape=ModelShape(2, 1, 8, 4),
               config=PlanConfig("static:zigzag"))

def attend(executor, loader):
    """Outputs of all batches, with q, k and v that depend on the tokens alone."""
    found = []
    for data, plan in loader:
        executor.prepare(plan)
        x = (data.tokens + data.position_ids * 0.5 + data.sequence_ids)[:, None, None].float()
        q, kv = torch.cos(x * torch.arange(1, 17).view(2, 8)), torch.sin(x * torch.arange(1, 17)
            .view(2, 1, 8)[:, :, None].flatten(1, 2).view(2, 8)).view(-1, 2, 1, 8)
        found.append((data.rows, DCPAttn.apply(executor, q, kv), plan.cu_seqlens.tolist()))
    return found

def alike(executor, planners):
    each = make_loader(ROWS, MASK, **OPTIONS)
    digests = [digest(plan) for _, plan in each]
    first = make_loader(ROWS, MASK, planner="first", processes=planners, **OPTIONS)
    parts = [plan for _, plan in first]
    assert all(isinstance(part, PlanPart) and part.device == rank for part in parts)
    assert [part.digest for part in parts] == digests
    for one, other in zip(attend(executor, first), attend(executor, each), strict=True):
        assert one[0] == other[0] and one[2] == other[2]
        assert torch.equal(one[1], other[1])
    assert first.metrics.plans == 2 * len(digests) and first.metrics.lost == 0
    first.close()

def killed(executor):
    loader = make_loader(ROWS, MASK, planner="first", processes=1, ahead=2,
                           **{**OPTIONS, "config": PlanConfig("static:zigzag", divisions=3)})
    batches = iter(loader)
    seen = [next(batches)]
    if rank == 0:  # stopped first: a batch is in its hands when it is killed
        pool = loader._plans.pool
        pids, submit = [*pool.processes], pool.submit_parts
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        def submit_and_kill(request):
            pool.submit_parts, waiting = submit, submit(request)
            time.sleep(0.5)  # it is handed over, unless another one still is there
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            return waiting
        pool.submit_parts = submit_and_kill
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen += list(batches)
    digests = [None] * dist.get_world_size()
    dist.all_gather_object(digests, [part.digest for _, part in seen])
    assert digests.count(digests[0]) == len(digests)
    if rank == 0:
        assert loader.metrics.lost >= 1, loader.metrics
        assert "the batch is placed by 'static:contiguous'" in str(caught[0].message)
        assert "static:contiguous" in {part.plan.partitioner for _, part in seen}
    loader.close()

LAYERS = Spec.from_text(
    "segment s = part[parts]*\\nmask own = causal and same(part)\\n"
    'mask band = causal and q - k < 9\\nstack mixed = 2 of band, own\\nfor "*" use mixed')
PARTS = [{"tokens": list(range(sum(n))), "parts": n} for n in ([20, 30], [9], [40], [5, 50])]
PARTS[1]["parts"] = [10]  # more than its tokens: no mask can be compiled for this row
PARTS.append({"tokens": list(range(64)), "parts": [65]})  # alone in its batch

def only_the_planner_compiles_masks(executor, processes):
    options = {**OPTIONS, "policy": "skip"}
    each = make_loader(PARTS, LAYERS, **options)
    wanted = [(data.rows, plan.digests, plan.cycle) for data, plan in each]
    assert [rows for rows, _, _ in wanted] == [(0,), (2,), (3,)]
    assert all(cycle == (0, 0, 1) for _, _, cycle in wanted)
    compile_mask, compiled = Mask.compile, []
    Mask.compile = lambda self, sample: compiled.append(sample) or compile_mask(self, sample)
    first = make_loader(PARTS, LAYERS, planner="first", processes=processes, **options)
    try:
        found = list(first)
    finally:
        Mask.compile = compile_mask
        first.close()
    assert bool(compiled) == (rank == 0 and not processes), len(compiled)
    assert [(data.rows, plan.digests, plan.cycle) for data, plan in found] == wanted
    assert all(isinstance(plan, StackedPlans) for _, plan in found)
    assert all(part.device == rank for _, plan in found for part in plan.plans)
    assert first.screening.counts == each.screening.counts == {"unfit": 2}
    assert first.screening.examples == each.screening.examples
    layers = LayerPlans.prepare(executor, found[0][1])
    assert layers.of(4).plan is layers.of(0).plan is not layers.of(2).plan
    tokens = len(found[0][0].tokens)
    DCPAttn.apply(layers.of(4), torch.ones(tokens, 2, 8), torch.ones(tokens, 2, 1, 8))
    strict = make_loader(PARTS, LAYERS, planner="first", processes=processes, **OPTIONS)
    try:
        list(strict)
    except DatasetError as error:
        assert str(error).startswith("row 1: segment `s`"), error
    else:
        raise AssertionError("row 1 does not fit its mask")
    strict.close()

OWN = Spec.from_text("segment s = part[parts]*\\nmask own = causal and same(part)").mask("own")

def targets_and_columns_are_alike(executor):
    rows = [{"tokens": list(range(sum(n))), "parts": n, "x": [i / 7 for i in range(sum(n))]}
            for n in ([20, 1, 1, 8], [9], [10, 30], [50, 5, 5])]
    options = {**OPTIONS, "hidden_targets": "leave_out", "extra_columns": ("x",)}
    each = make_loader(rows, OWN, **options)
    first = make_loader(rows, OWN, planner="first", processes=1, **options)
    for (one, _), (other, _) in zip(each, first, strict=True):
        assert one.num_targets == other.num_targets
        for name in ("labels", "target_rows", "target_ids", "position_ids"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name
        assert torch.equal(one.extra["x"], other.extra["x"])
        assert torch.equal(one.target_extra["x"], other.target_extra["x"])
    first.close()
    assert each.screening.hidden_targets == first.screening.hidden_targets == 3 + 1 + 2
executor = DCPExecutor()
for scenario in (lambda e: alike(e, 0), lambda e: alike(e, 1), killed,
                 lambda e: only_the_planner_compiles_masks(e, 0),
                 lambda e: only_the_planner_compiles_masks(e, 1),
                 targets_and_columns_are_alike):
    scenario(executor)
    dist.barrier()
try:
    make_loader(ROWS, MASK, planner="first", cluster=Cluster(devices_per_node=7), **OPTIONS)
except RunError as error:
    assert "a replica has 7 devices, the group 3 ranks" in str(error)
    print("fine", flush=True)
executor.close()
dist.destroy_process_group()
'''


HERE = str(Path(__file__).parent)


def test_parts_are_those_of_the_plan_every_rank_would_make(tmp_path, start_ranks):
    script = tmp_path / "shared.py"
    script.write_text(f"HERE = {HERE!r}\n{SCRIPT}", encoding="utf-8")
    assert start_ranks(3, script, tmp_path) == ["fine\n"] * 3
