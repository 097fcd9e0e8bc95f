"""Train a small GPT on real text under any mask or stack of a .dcpm file, on one process or many.

```
torchrun --nproc-per-node 4 examples/train_gpt.py --mask shared_question --steps 20
python examples/train_gpt.py --mask shared_question --steps 20 --attention dense
```

Both print the same losses. With ``dcp``, a plan made for the batch spreads it over the ranks; with
``dense``, one process computes every pair of tokens and hides those that the mask forbids.

```
torchrun --nproc-per-node 4 examples/train_gpt.py --replicas 2 --micro-batches 2
torchrun --nproc-per-node 4 examples/train_gpt.py --replicas 2 --micro-batches 2 --balance order
python examples/train_gpt.py --micro-batches 4 --attention dense
```

These three print the same losses as well, because a step sees the same documents: two replicas
share them by work or in the order of finished packs, or one process takes them all.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from documents import read_documents
from gpt import GPT, Attention, GPTConfig
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from dcp_dsl import Sample, Stack, dense_mask, load
from dcp_planner import ModelShape
from dcp_runtime import (
    BatchPlan,
    DCPAttn,
    DCPDataloader,
    DCPExecutor,
    LayerPlans,
    LocalData,
    LookAhead,
    Packing,
    Planning,
    next_token_loss,
    sum_gradients,
)

EXAMPLES = Path(__file__).resolve().parent
KEY_ORDERS: dict[str, Callable[[int], torch.Tensor]] = {
    "dense": torch.arange,
    "dense-reversed": lambda n: torch.arange(n).flip(0),
    "dense-rotated": lambda n: torch.arange(n).roll(n // 2),
}
"""Dense attention by the order in which it sums over the keys: equal up to rounding."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


Row: TypeAlias = dict[str, Any]
AttentionOfBatch: TypeAlias = Callable[[LocalData, BatchPlan], Attention]
"""Returns the attention of one batch."""


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--spec", type=Path, default=EXAMPLES / "train.dcpm")
    parser.add_argument("--mask", default="causal", help="a mask or stack of the spec, or a call")
    parser.add_argument("--attention", choices=["dcp", *KEY_ORDERS], default="dcp")
    parser.add_argument("--parallel", choices=["replicate", "fsdp"], default="replicate")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--tokens", type=int, default=2048, help="most tokens of a replica in a micro-batch"
    )
    parser.add_argument("--replicas", type=int, default=1, help="groups of ranks with own batches")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a replica in a step")
    parser.add_argument("--balance", choices=["work", "order"], default="work")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--planners", type=int, help="processes that plan ahead")
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
    backend = take_device(arguments.device)
    if "RANK" in os.environ:  # torchrun sets it
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mesh = make_mesh(arguments.replicas, arguments.device)
    executor = DCPExecutor(mesh["cp"])
    documents, masks = list(read_documents(arguments.tokens)), find_masks(arguments)
    loader = None
    try:
        loader = make_loader(arguments, documents, masks, mesh)
        if arguments.attention == "dcp":
            make_attention = dcp_attention(executor)
        else:
            make_attention = dense_attention(documents, masks, KEY_ORDERS[arguments.attention])
        losses = train(arguments, loader, make_attention)
        if arguments.losses and dist.get_rank() == 0:
            arguments.losses.write_text(json.dumps(losses), encoding="utf-8")
    finally:
        if loader is not None:
            loader.close()
        executor.close()
        dist.destroy_process_group()


def take_device(kind: str) -> str:
    """Choose this process's GPU, if GPUs are wanted; return the backends of the process group."""
    if kind == "cpu":
        return "gloo"
    number, known = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= known:
        raise SystemExit(
            f"--device cuda: process {number} of this machine needs a GPU of its own, and torch "
            f"sees {known}; "
            + (f"start at most {known} processes" if known else "use --device cpu")
        )
    torch.cuda.set_device(number)
    return "cpu:gloo,cuda:nccl"  # the loader agrees on batches through tensors on the CPU


def make_mesh(replicas: int, device: str = "cpu") -> DeviceMesh:
    """Return a mesh of replicas (dp) by ranks of a replica (cp)."""
    world = dist.get_world_size()
    if world % replicas:
        raise SystemExit(f"--replicas: expected a divisor of the {world} ranks, got {replicas}")
    return init_device_mesh(device, (replicas, world // replicas), mesh_dim_names=("dp", "cp"))


def find_masks(arguments: argparse.Namespace) -> Stack:
    """Return the mask of every layer; one mask is a stack whose layers are alike."""
    spec = load(arguments.spec)
    if arguments.mask in spec.stacks:
        return spec.stack(arguments.mask)
    return Stack.of(spec.mask(arguments.mask))


def make_loader(
    arguments: argparse.Namespace, documents: list[Row], masks: Stack, mesh: DeviceMesh
) -> DCPDataloader:
    """Pack the documents into global batches, and divide each over the replicas of the mesh."""
    config = GPTConfig()
    element_bytes = DTYPES[arguments.dtype].itemsize
    shape = ModelShape(config.q_heads, config.kv_heads, config.head_dim, element_bytes)
    return DCPDataloader(
        documents,
        masks,
        Packing(
            arguments.tokens,
            shuffle=True,
            seed=arguments.seed,
            micro_batches=arguments.micro_batches,
            balance=arguments.balance,
        ),
        planning=Planning(shape, group=mesh),
        look_ahead=LookAhead(processes=arguments.planners),
    )


def train(
    arguments: argparse.Namespace, loader: DCPDataloader, make_attention: AttentionOfBatch
) -> list[float]:
    """Return the loss per token of every step."""
    device = torch.device(arguments.device)
    model = make_model(GPTConfig(), arguments.parallel, arguments.seed, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, foreach=True)
    losses: list[float] = []
    total = torch.zeros((), device=device)
    for data_on_host, plan in endless(loader):
        local_data = data_on_host.to(device)
        attend = make_attention(local_data, plan)
        dtype = DTYPES[arguments.dtype]
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model(local_data.tokens, local_data.position_ids, attend)
        # Divided by the targets of the global batch: losses of ranks and micro-batches add up.
        loss = next_token_loss(logits, local_data)
        loss.backward()
        total += loss.detach()
        if not local_data.ends_step:
            continue
        sum_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(total)
        losses.append(total.item())
        total.zero_()
        if dist.get_rank() == 0:
            print(
                f"step {len(losses)}: loss {losses[-1]:.4f}, {plan.num_devices} ranks", flush=True
            )
        if len(losses) == arguments.steps:
            break
    return losses


def make_model(
    config: GPTConfig,
    parallel: str,
    seed: int = 0,
    mesh: DeviceMesh | None = None,
    device: torch.device | str = "cpu",
) -> GPT:
    """Return the same model on every rank, or its shards on the ranks of a mesh (``None``: all)."""
    torch.manual_seed(seed)
    model = GPT(config).to(device)
    if parallel == "fsdp":
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        sum_gradients(model)  # FSDP sums from its first backward on
    return model


def endless(loader: DCPDataloader) -> Iterator[tuple[LocalData, BatchPlan]]:
    """Yield the batches of one epoch after the other, without end."""
    while True:
        yield from loader


def dcp_attention(executor: DCPExecutor) -> AttentionOfBatch:
    """Return attention spread over the ranks; moving a model to DCP changes these lines."""

    def of_batch(local_data: LocalData, plan: BatchPlan) -> Attention:
        layers = LayerPlans.prepare(executor, plan)
        return lambda layer, q, kv: DCPAttn.apply(layers.of(layer), q, kv)

    return of_batch


def dense_attention(
    documents: list[Row], masks: Stack, order: Callable[[int], torch.Tensor]
) -> AttentionOfBatch:
    """Return masked attention in one process, sequence by sequence, every pair computed."""

    def of_batch(local_data: LocalData, plan: BatchPlan) -> Attention:
        rows = [documents[row] for row in local_data.rows]
        lengths = [len(row["tokens"]) for row in rows]
        seen = {
            mask.call: [torch.from_numpy(dense_mask(mask, Sample.of(row, mask))) for row in rows]
            for mask in masks.masks
        }

        def attend(layer: int, q: torch.Tensor, kv: torch.Tensor) -> torch.Tensor:
            (heads,) = masks.layer(layer).heads  # the same mask for all of them
            parts = []
            for visible, q_rows, kv_rows in zip(
                seen[heads.mask.call], q.split(lengths), kv.split(lengths), strict=True
            ):
                keys = order(len(kv_rows))
                out = functional.scaled_dot_product_attention(
                    *(x.transpose(0, 1)[None] for x in (q_rows, *kv_rows[keys].unbind(1))),
                    attn_mask=visible[:, keys].to(q.device),
                    enable_gqa=True,
                )
                parts.append(out[0].transpose(0, 1))
            return torch.cat(parts)

        return attend

    return of_batch


if __name__ == "__main__":
    main()
