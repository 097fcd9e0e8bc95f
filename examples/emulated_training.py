"""Train a tiny model on ranks that are threads: attention is emulated, everything else is real.

```
python examples/emulated_training.py --steps 4 --out runs
```

The loader packs rows and has their plans made ahead by a planner process. Each step runs its plan's
programs on an emulated cluster, 8 devices by default, `--dilation` times slower than real ones.
Around attention every rank computes for real: embeddings, a layer of its own tokens, the loss and
gradients, which are summed. A step says how long it waited for its plan, what attention took beside
what was predicted, and the loss. With `--out` each step leaves a plan file with both timelines, for
`dcpm dashboard`.

Emulated attention gives each token its own value back, so the loss only shows that the loop trains.
"""

import argparse
import copy
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from documents import read_documents
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dcp_dsl import load
from dcp_planner import ModelShape, Plan, Trace, find_cluster, simulate, write_plan
from dcp_runtime import DCPDataloader, EmulatedRun, LookAhead, Packing, Planning

EXAMPLES = Path(__file__).resolve().parent
WIDTH, ROWS = 32, 100
SHAPE = ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)
"""Of the attention that is emulated; the model around it is as small as a CPU likes."""


@dataclass
class Step:
    """Seconds waited for the plan, seconds of attention emulated and predicted, mean loss."""

    waited_s: float
    attention_s: float
    predicted_s: float
    loss: float


class Attended(torch.autograd.Function):
    """Attention of one rank that takes its time and gives every token its own value back."""

    @staticmethod
    def forward(ctx, values: Tensor, run: EmulatedRun, rank: int) -> Tensor:  # type: ignore[no-untyped-def] # noqa: ANN001
        """Run the rank's forward program."""
        ctx.run, ctx.rank = run, rank
        run.attend(rank, "forward")
        return values.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def,override] # noqa: ANN001
        """Run the rank's backward program."""
        ctx.run.attend(ctx.rank, "backward")
        return gradient, None, None


class TinyModel(nn.Module):
    """An embedding, attention, a layer, and the logits of the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layer = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.logits = nn.Linear(WIDTH, 256)

    def forward(self, tokens: Tensor, run: EmulatedRun, rank: int) -> Tensor:
        """Return the logits of a rank's tokens."""
        x: Tensor = self.embedding(tokens)
        x = x + Attended.apply(x, run, rank)
        return self.logits(self.layer(x) + x)  # type: ignore[no-any-return]


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cluster", default="a100-p4de:1x8", help="as dcpm plan --cluster")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=16_384, help="most tokens of a step")
    parser.add_argument("--dilation", type=float, default=500, help="real seconds for one")
    parser.add_argument("--planners", type=int, default=1, help="processes that plan ahead")
    parser.add_argument("--out", type=Path, help="folder for the plan and timelines of each step")
    return parser.parse_args(given)


def train(arguments: argparse.Namespace) -> list[Step]:
    """Train for some steps, print what each took, and return it."""
    torch.manual_seed(0)
    rows = list(islice(read_documents(arguments.tokens // 4), ROWS))
    loader = DCPDataloader(
        rows,
        load(EXAMPLES / "train.dcpm").mask("shared_question"),
        Packing(arguments.tokens),
        planning=Planning(SHAPE, find_cluster(arguments.cluster), rank=0),
        look_ahead=LookAhead(processes=arguments.planners),
    )
    model, steps = TinyModel(), list[Step]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = iter(loader)
    try:
        for number in range(arguments.steps):
            begin_s = time.perf_counter()
            local, plan = next(batches)
            waited_s = time.perf_counter() - begin_s
            assert isinstance(plan, Plan), "one mask, planned by this process or its own planner"
            texts = [bytes(rows[row]["tokens"]) for row in local.rows]
            loss, trace = step_of(model, texts, plan, arguments.dilation)
            optimizer.step()
            optimizer.zero_grad()
            predicted = simulate(plan)
            found = Step(waited_s, attention_s(trace), predicted.seconds(), loss)
            steps.append(found)
            print(
                f"step {number}: {plan.num_tokens:,} tokens, waited {waited_s:.3f} s for the plan; "
                f"attention emulated {found.attention_s * 1e3:.3f} ms, predicted "
                f"{found.predicted_s * 1e3:.3f} ms; loss {loss:.3f}",
                flush=True,
            )
            if arguments.out:
                arguments.out.mkdir(exist_ok=True)
                write_plan(arguments.out / f"step-{number}.dcpplan", plan, (predicted, trace))
    finally:
        loader.close()
    return steps


def attention_s(trace: Trace) -> float:
    """Return the time of both directions, without the model's own time between them."""
    return trace.seconds(is_backward=False) + trace.seconds(is_backward=True)


def step_of(
    model: TinyModel, texts: list[bytes], plan: Plan, dilation: float
) -> tuple[float, Trace]:
    """Run forward and backward of all ranks, a thread each; return the mean loss and all events.

    Gradients add up in the model that the ranks share, as an all-reduce would.
    """
    tokens = torch.tensor(list(b"".join(texts)))
    labels = torch.tensor([n for text in texts for n in (*text[1:], -100)])
    targets = int((labels >= 0).sum())
    run = EmulatedRun(plan, dilation)
    losses = [0.0] * plan.num_devices
    copies = [copy.deepcopy(model) for _ in losses]  # threads add to gradients of their own

    def work(rank: int) -> None:
        own = torch.from_numpy(plan.local_tokens(rank))
        logits = copies[rank](tokens[own], run, rank)
        loss = cross_entropy(logits, labels[own], ignore_index=-100, reduction="sum") / targets
        loss.backward()
        losses[rank] = loss.item()

    trace = run.run(work)
    for parameter, *others in zip(
        model.parameters(), *(each.parameters() for each in copies), strict=True
    ):
        parameter.grad = torch.stack([other.grad for other in others]).sum(0)
    return sum(losses), trace


if __name__ == "__main__":
    train(parse_arguments())
