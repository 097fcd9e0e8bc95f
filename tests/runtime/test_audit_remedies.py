"""Where `dcpm audit` says what to write, a script with that written is right.

A small script has holes. A case fills some wrongly, and then as the audit says.
"""

from dataclasses import dataclass, field

import pytest

from dcp_runtime.auditing.runs import AuditOrder, audit_script

SCRIPT = """
import contextlib
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from dcp_runtime import sum_gradients

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed({seed})
rows = torch.randint(0, 50, (32, 10), generator=torch.Generator().manual_seed(3))
inner = nn.Sequential(
    nn.Embedding(50, 16), nn.Linear(16, 16), nn.Flatten(0, 1), {norm}, nn.Linear(16, 50)
)
model = inner
{wrap}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
alone = dist.new_group([rank]) if world == 1 else [dist.new_group([r]) for r in range(world)][rank]

def targets(x):
    labels = torch.where(x % 5 == 0, -100, x)
    return {labels}

def add_up(parameters, group=None, divisor=1):
    for p in parameters:
        if p.grad is not None:
            dist.all_reduce(p.grad, group=group)
            p.grad /= divisor

batches = DataLoader({data}, 2, sampler={sampler}, drop_last={drop_last})
for micro in zip(*[iter(batches)] * {accumulate}):
    count = sum((targets(x) != -100).sum() for x in micro)
    own = (targets(micro[-1]) != -100).sum()
    {count}
    for number, x in enumerate(micro):
        is_last = number == len(micro) - 1
        with {context}:
            logits = {forward}
            loss = F.cross_entropy(logits, targets(x).flatten(), reduction="sum")
            ({loss}).backward()
    {reduce}
    optimizer.step()
    {clear}
dist.destroy_process_group()
"""
BASE = {
    "seed": "0",
    "norm": "nn.LayerNorm(16)",
    "wrap": "",
    "labels": "labels[:, 1:]",
    "sampler": "range(rank, 32, world)",
    "data": "rows",
    "drop_last": "False",
    "accumulate": "2",
    "count": "dist.all_reduce(count)",
    "context": "contextlib.nullcontext()",
    "forward": "model(x[:, :-1])",
    "loss": "loss / count",
    "reduce": "add_up(model.parameters())",
    "clear": "optimizer.zero_grad()",
}
DDP = {"wrap": "model = DistributedDataParallel(inner)", "reduce": "sum_gradients(model)"}
MEAN = {**DDP, "reduce": "", "loss": "loss / count * world"}
FSDP = {
    "wrap": "fully_shard(inner)\nsum_gradients(model)",
    "reduce": "",
    "norm": "nn.GELU()",
}
CLIP = "nn.utils.clip_grad_norm_(model.parameters(), 0.05)"
IGNORE = (
    "DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(inner, {})\n"
    "model = DistributedDataParallel(inner)"
)


@dataclass
class Slip:
    """A slip on top of a right script, the fault that is found first, and its remedy."""

    wrong: dict[str, str]
    part: str
    kind: str
    words: str
    mended: list[dict[str, str]]
    base: dict[str, str] = field(default_factory=dict)
    ranks: int = 2


OVERLAP = "range(32) if world == 1 else range(rank * 14, rank * 14 + 18)"
NO_SYNC = "model.no_sync()"
LAST_SYNC = "contextlib.nullcontext() if is_last else model.no_sync()"
TWO_OF_FOUR = (
    "pairs = [dist.new_group([r, r + 1]) for r in range(0, world - 1, 2)]; "
    "add_up(model.parameters(), pairs[rank // 2] if pairs else None)"
)
DDP_OF_PAIRS = (
    "pairs = [dist.new_group([r, r + 1]) for r in range(0, world - 1, 2)]\n"
    "group = pairs[rank // 2] if pairs else None\n"
    "model = DistributedDataParallel(inner, process_group=group)"
)
SLIPS = {
    "rows twice": Slip(
        {"sampler": OVERLAP, "accumulate": "1"}, "data", "seen twice", "each its part of the rows",
        [{"sampler": "range(rank, 32, world)"}],
    ),
    "rows twice, in sets of the ranks": Slip(
        {"data": f"rows[list({OVERLAP})]", "sampler": "None", "accumulate": "1"},
        "data", "seen twice", "give every row to one rank", [{"data": "rows[rank::world]"}],
    ),
    "same rows, other than one process has": Slip(
        {"sampler": "range(0, 32, world)"}, "data", "seen by every rank", "DistributedSampler",
        [{"sampler": "DistributedSampler(rows, shuffle=False)"}],
    ),
    "last batch": Slip(
        {"data": "rows[rank:30:world]", "sampler": "None", "drop_last": "True", "accumulate": "1"},
        "data", "never seen", "drop_last=False", [{"drop_last": "False"}],
    ),
    "shifted twice": Slip(
        {"labels": "F.pad(labels[:, 2:], (0, 1), value=-100)"}, "labels", "shifted twice",
        "shift labels once", [{"labels": "labels[:, 1:]"}],
    ),
    "not shifted": Slip(
        {"labels": "labels[:, :-1]"}, "labels", "not shifted", "labels[:, 1:]",
        [{"labels": "labels[:, 1:]"}],
    ),
    "local count": Slip(
        {"count": "", "reduce": "add_up(model.parameters(), divisor=world)"},
        "loss", "divided by local targets", "all_reduce them",
        [{"count": "dist.all_reduce(count)", "reduce": "add_up(model.parameters())"}],
    ),
    "divided twice": Slip(
        {"loss": "loss / count / 2"}, "loss", "divided twice", "leave out the division by 2",
        [{"loss": "loss / count"}],
    ),
    "means added up": Slip(
        {"loss": "loss / own", "count": "dist.all_reduce(own)", "labels": "x[:, 1:]"},
        "loss", "means added up", "the loss by 2",
        [{"loss": "loss / own / 2"}, {"loss": "loss / count", "count": "dist.all_reduce(count)"}],
    ),
    "multiplied by ranks": Slip(
        {"loss": "loss / count * world"}, "loss", "multiplied by ranks",
        "leave out the factor 2 of the loss; or average",
        [{"loss": "loss / count"}, {"reduce": "add_up(model.parameters(), divisor=world)"}],
    ),
    "clipped before DDP's means become sums": Slip(
        {"reduce": f"{CLIP}; sum_gradients(model)"}, "norm", "clipped before the sum",
        "clip after the gradients of the ranks are added up",
        [{"reduce": f"sum_gradients(model); {CLIP}"}], DDP,
    ),
    "clipped before the sum": Slip(
        {"reduce": f"{CLIP}; add_up(model.parameters())"}, "norm", "clipped before the sum",
        "clip after", [{"reduce": f"add_up(model.parameters()); {CLIP}"}],
    ),
    "norm of this rank": Slip(
        {"reduce": "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]); "
         "add_up(model.parameters()); "
         "nn.utils.clip_grads_with_norm_(model.parameters(), 0.05, norm)"},
        "norm", "norm of local gradients only", "torch.nn.utils.clip_grad_norm_ does",
        [{"reduce": f"add_up(model.parameters()); {CLIP}"}],
    ),
    "forgotten": Slip(
        {"reduce": ""}, "parameters", "partial", "sum_gradients(model) between",
        [{"reduce": "sum_gradients(model)"}],
    ),
    "past DDP": Slip(
        {"forward": "model.module(x[:, :-1])", "reduce": ""}, "parameters", "partial",
        "model(...) in place of model.module(...); it takes the mean, so dcp_runtime.sum_gradients",
        [{"forward": "model(x[:, :-1])", "reduce": "sum_gradients(model)"}], DDP,
    ),
    "past DDP, a loss for means": Slip(
        {"forward": "model.module(x[:, :-1])"}, "parameters", "partial",
        "in place of model.module(...)", [{"forward": "model(x[:, :-1])"}], MEAN,
    ),
    "never in sync": Slip(
        {"context": NO_SYNC}, "parameters", "partial", "the last micro-batch runs without sync",
        [{"context": LAST_SYNC}], MEAN,
    ),
    "in sync too early": Slip(
        {"context": "model.no_sync() if is_last else contextlib.nullcontext()"},
        "parameters", "wrong", "outside no_sync() of DDP",
        [{"context": LAST_SYNC}], MEAN,
    ),
    "FSDP never in sync": Slip(
        {"wrap": FSDP["wrap"] + "\nmodel.set_requires_gradient_sync(False)"},
        "parameters", "missing", "behind set_requires_gradient_sync(True) of FSDP",
        [{"context": "contextlib.nullcontext(model.set_requires_gradient_sync(is_last))"}], FSDP,
    ),
    "FSDP in sync too early": Slip(
        {"context": "contextlib.nullcontext(model.set_requires_gradient_sync(not is_last))"},
        "parameters", "wrong", "behind set_requires_gradient_sync(True) of FSDP",
        [{"context": "contextlib.nullcontext(model.set_requires_gradient_sync(is_last))"}], FSDP,
    ),
    "DDP of pairs": Slip(
        {"wrap": DDP_OF_PAIRS}, "parameters", "partial", "covers 2 of 4 ranks: leave out process",
        [{"wrap": DDP["wrap"]}], MEAN, ranks=4,
    ),
    "left out of DDP": Slip(
        {"wrap": IGNORE.format('["4.weight", "4.bias"]')}, "parameters", "partial",
        "take them off that list", [{"wrap": IGNORE.format("[]")}], MEAN,
    ),
    "biases left out": Slip(
        {"reduce": "add_up(p for p in model.parameters() if p.ndim > 1)"}, "parameters", "partial",
        "adds up others; let it add up these, too", [{"reduce": "add_up(model.parameters())"}],
    ),
    "a group of one": Slip(
        {"reduce": "add_up(model.parameters(), alone)"}, "parameters", "partial",
        "a group of 1 of 2 ranks: leave out group=", [{"reduce": "add_up(model.parameters())"}],
    ),
    "a group of two": Slip(
        {"reduce": TWO_OF_FOUR}, "parameters", "partial", "a group of 2 of 4 ranks",
        [{"reduce": "add_up(model.parameters())"}], ranks=4,
    ),
    "a second sum of some, of means": Slip(
        {"loss": "loss / count * world", "reduce":
         "add_up(model.parameters(), divisor=world); add_up(inner[4].parameters())"},
        "parameters", "doubled", "add up once a step",
        [{"reduce": "add_up(model.parameters(), divisor=world)"}],
    ),
    "averaged by hand": Slip(
        {"reduce": "add_up(model.parameters(), divisor=world)"}, "parameters", "averaged",
        "leave out the division by ranks",
        [{"reduce": "add_up(model.parameters())"}, {"reduce": "sum_gradients(model)"}],
    ),
    "averaged by the loss": Slip(
        {"loss": "loss / count / world"}, "parameters", "averaged",
        "leave out the division of losses by the 2 ranks", [{"loss": "loss / count"}],
    ),
    "averaged by DDP": Slip(
        {"reduce": ""}, "parameters", "averaged", "multiply the loss by the 2 ranks",
        [{"reduce": "sum_gradients(model)"}, {"loss": "loss / count * world"}], DDP,
    ),
    "averaged by FSDP": Slip(
        {"wrap": "fully_shard(inner)"}, "parameters", "averaged", "behind the last fully_shard",
        [{"wrap": FSDP["wrap"]}, {"loss": "loss / count * world"}], FSDP,
    ),
    "statistics of each rank": Slip(
        {"norm": "nn.BatchNorm1d(16)"}, "parameters", "statistics of each rank",
        "LayerNorm or GroupNorm", [{"norm": "nn.LayerNorm(16)"}, {"norm": "nn.GroupNorm(2, 16)"}],
    ),
    "cleared before the step": Slip(
        {"reduce": "add_up(model.parameters()); optimizer.zero_grad()"}, "parameters", "missing",
        "clear them after", [{"reduce": "add_up(model.parameters())"}],
    ),
    "never cleared": Slip(
        {"clear": ""}, "parameters", "stale", "optimizer.zero_grad() after",
        [{"clear": "optimizer.zero_grad()"}],
    ),
    "seeds of ranks": Slip(
        {"seed": "rank"}, "ranks", "other weights", "torch.manual_seed(seed)", [{"seed": "5"}],
    ),
}  # fmt: skip
SECOND = "F.cross_entropy(model(x[:, :-1]), targets(x).flatten(), reduction='sum')"
MEASURED = (
    "add_up(model.parameters()); nn.utils.clip_grad_norm_(model.parameters(), float('inf')); "
    "[p.grad.mul_(0.7) for p in model.parameters()]"
)
VALUES = "nn.utils.clip_grad_value_(model.parameters(), 1e-3)"
QUICK = {"rows twice, in sets of the ranks", "past DDP"}
pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("forked_audits")]


def faults(folder, holes, ranks):
    script = folder / f"train{len(list(folder.iterdir()))}.py"
    text = SCRIPT
    for name, filled in (BASE | holes).items():
        text = text.replace(f"{{{name}}}", filled or "pass")
    script.write_text(text)
    found = audit_script(AuditOrder((str(script),), ranks=ranks, timeout_s=100))
    return [each for each in found if each.is_fault]


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow, id=n) for n in SLIPS],
)
def test_what_a_remedy_says_makes_the_script_right(name, tmp_path):
    slip = SLIPS[name]
    first = faults(tmp_path, slip.base | slip.wrong, slip.ranks)[0]
    assert (first.part, first.kind) == (slip.part, slip.kind)
    assert slip.words in first.way_out
    for mended in slip.mended:
        assert faults(tmp_path, slip.base | slip.wrong | mended, slip.ranks) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "base",
    [
        {},
        DDP,
        MEAN,
        FSDP,
        DDP | {"context": LAST_SYNC},
        {"accumulate": "1"},
        {"accumulate": "1", "loss": f"loss / count).backward(); ({SECOND} / count"},
        {"reduce": MEASURED},
        {"reduce": f"add_up(model.parameters()); {VALUES}"},
    ],
)
def test_the_script_is_right_as_it_is(base, tmp_path):
    assert faults(tmp_path, base, 2) == []
