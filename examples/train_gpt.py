"""Train a small GPT on real text under any mask of a .dcpm file, on one process or on many.

```
torchrun --nproc-per-node 4 examples/train_gpt.py --mask shared_question --steps 20
python examples/train_gpt.py --mask shared_question --steps 20 --attention dense
```

Both print the same losses: with ``dcp`` the batch is spread over the ranks by a plan made for it,
with ``dense`` one process computes every pair of tokens and hides those the mask forbids.
"""

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from documents import read_documents
from gpt import GPT, Attention, GPTConfig
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from dcp_dsl import Mask, Sample, dense_mask, load
from dcp_planner import Cluster, ModelShape, Plan
from dcp_runtime import DCPAttn, DCPDataloader, DCPExecutor, LocalData

EXAMPLES = Path(__file__).resolve().parent
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--spec", type=Path, default=EXAMPLES / "train.dcpm")
    parser.add_argument("--mask", default="causal", help="a mask of the spec, or a call of one")
    parser.add_argument("--attention", choices=["dcp", "dense", "dense-math"], default="dcp")
    parser.add_argument("--parallel", choices=["replicate", "fsdp"], default="replicate")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=2048, help="most tokens of a batch")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planners", type=int, default=0, help="processes that plan ahead")
    parser.add_argument("--losses", type=Path, help="write the loss of every step as JSON")
    arguments = parser.parse_args()
    if arguments.attention != "dcp" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        parser.error(
            f"--attention {arguments.attention} runs on one process; start one, or use dcp"
        )
    return arguments


def main() -> None:
    """Train, and print the loss per token of every step."""
    arguments = parse_arguments()
    if "RANK" in os.environ:  # torchrun sets it
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    executor = DCPExecutor()
    loader = None
    try:
        loader = make_loader(arguments)
        losses = train(arguments, loader, executor)
        if arguments.losses and executor.rank == 0:
            arguments.losses.write_text(json.dumps(losses), encoding="utf-8")
    finally:
        if loader is not None:
            loader.close()
        executor.close()
        dist.destroy_process_group()


def make_loader(arguments: argparse.Namespace) -> DCPDataloader:
    """Pack the documents into batches; the packing does not depend on the number of ranks."""
    config = GPTConfig()
    return DCPDataloader(
        read_documents(arguments.tokens),
        load(arguments.spec).mask(arguments.mask),
        token_budget=arguments.tokens,
        cluster=Cluster(devices_per_node=dist.get_world_size()),
        shape=ModelShape(
            config.q_heads, config.kv_heads, config.head_dim, DTYPES[arguments.dtype].itemsize
        ),
        shuffle=True,
        seed=arguments.seed,
        planners=arguments.planners,
    )


def train(
    arguments: argparse.Namespace, loader: DCPDataloader, executor: DCPExecutor
) -> list[float]:
    """Give the loss per token of every step."""
    torch.manual_seed(arguments.seed)  # the same weights on every rank
    model = GPT(GPTConfig())
    if arguments.parallel == "fsdp":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        model.set_force_sum_reduction_for_comms(True)  # losses are already divided, see below
        model.set_gradient_divide_factor(1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, foreach=True)
    losses: list[float] = []
    for local_data, plan in endless(loader):
        attend = make_attention(arguments, executor, local_data, plan)
        dtype = DTYPES[arguments.dtype]
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            logits = model(local_data.tokens, local_data.position_ids, attend)
        # Ranks own different numbers of targets: sum here, divide by those of the whole batch.
        loss = functional.cross_entropy(logits.float(), local_data.labels, reduction="sum")
        (loss / local_data.num_targets).backward()
        if arguments.parallel == "replicate":
            add_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        losses.append(loss.item() / local_data.num_targets)
        if executor.rank == 0:
            print(
                f"step {len(losses)}: loss {losses[-1]:.4f}, {plan.num_devices} ranks", flush=True
            )
        if len(losses) == arguments.steps:
            break
    return losses


def endless(loader: DCPDataloader) -> Iterator[tuple[LocalData, Plan]]:
    """Give epoch after epoch."""
    while True:
        yield from loader


def add_gradients(model: torch.nn.Module) -> None:
    """Add up the gradients of all ranks; DistributedDataParallel would take their mean."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


def make_attention(
    arguments: argparse.Namespace, executor: DCPExecutor, local_data: LocalData, plan: Plan
) -> Attention:
    """Give the attention of one batch: the line that changes when a model moves to DCP."""
    if arguments.attention == "dcp":
        executor.prepare(plan)
        return lambda q, kv: DCPAttn.apply(executor, q, kv)
    assert plan.provenance is not None, "the loader was given a spec"
    mask = load(arguments.spec).mask(plan.provenance.mask)
    samples = [Sample.from_json(text) for text in plan.provenance.samples]
    return dense_attention(mask, samples, use_math=arguments.attention == "dense-math")


def dense_attention(mask: Mask, samples: list[Sample], *, use_math: bool) -> Attention:
    """Give masked attention in one process, sequence by sequence, every pair computed."""
    hidden = [torch.from_numpy(dense_mask(mask, sample)) for sample in samples]
    lengths = [sample.length for sample in samples]

    def attend(q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
        parts = []
        for seen, q_rows, kv_rows in zip(hidden, q.split(lengths), kv.split(lengths), strict=True):
            heads = (q_rows, *kv_rows.unbind(1))
            backends = (
                [SDPBackend.MATH] if use_math else [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
            )
            with sdpa_kernel(backends):
                out = functional.scaled_dot_product_attention(
                    *(x.transpose(0, 1)[None] for x in heads), attn_mask=seen, enable_gqa=True
                )
            parts.append(out[0].transpose(0, 1))
        return torch.cat(parts)

    return attend


if __name__ == "__main__":
    main()
