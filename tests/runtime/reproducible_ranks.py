"""One rank of a world that trains the inputs of attention: ``reproducible_ranks.py FOLDER STEPS``.

Every token has q, k and v of its own, which Adam trains: all that is outside of attention works on
single tokens. Rank 0 writes what the ranks hold in the end, in packed order, as `trained-SIZE.pt`.
It also sums gradients of ranks in order, as `sums-SIZE.pt`.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from dcp_dsl import Sample, Spec, block_sparsity
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan
from dcp_runtime import DCPAttn, DCPExecutor, RunError, sum_gradients, undispatch

LENGTHS, HEADS = (520, 40), (2, 1, 1)


def train(steps):
    """Return the trained q, k and v of all tokens after some steps of two layers."""
    size, rank = dist.get_world_size(), dist.get_rank()
    mask = Spec.from_text("mask plain = causal").mask("plain")
    masks = [mask.bind(Sample({}, n)) for n in LENGTHS]
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(sum(LENGTHS), h, 16, generator=generator) for h in HEADS]
    target = torch.randn(sum(LENGTHS), 2, 16, generator=generator)
    config = PlanConfig("static:ring", reproducible=True)
    blocks = block_sparsity(masks, 256 * (1 + size % 2), 256 * (1 + size % 2))
    plan = build_plan(blocks, ModelShape(*HEADS[:2], 16, 4), Cluster(devices_per_node=size), config)
    rows = torch.tensor(plan.local_tokens(rank))
    trained = [x[rows].requires_grad_() for x in start]
    optimizer = torch.optim.Adam(trained, lr=0.01)
    # The parameters of ranks differ by design: each holds its own tokens.
    with DCPExecutor(compare_parameters_every=None) as executor:
        for step in range(steps):
            prepared = executor.prepare(plan, step=step)
            q, k, v = trained
            out = DCPAttn.apply(prepared, q, (k, v))
            out = DCPAttn.apply(prepared, out + q, (k, v))
            ((out - target[rows]) ** 2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [undispatch(x.detach(), plan) for x in trained]


def summed_in_order():
    """Return sums of gradients over the ranks, and what is refused."""
    model = torch.nn.Linear(4, 3)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator) * 10.0 ** (3 * dist.get_rank())
    own = [p.grad.clone() for p in model.parameters()]
    sum_gradients(model, reproducible=True)
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
    parallel(torch.ones(1, 4)).sum().backward()
    refused = ""
    try:
        sum_gradients(parallel, reproducible=True)
    except RunError as error:
        refused = str(error)
    return own, [p.grad for p in model.parameters()], refused


def main():
    """Train, sum, and write what was found."""
    folder, steps = Path(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    trained = train(steps)
    if rank == 0:
        torch.save(trained, folder / f"trained-{size}.pt")
    if size > 1:
        torch.save(summed_in_order(), folder / f"sums-{size}-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
