"""One of two gloo ranks that audit a training from inside it; the folder is the first argument.

Rank 0 prints what the audits of a right loop, of one without a sum, and of none find.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn import functional

import dcp_runtime


def train(*, sums):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Embedding(23, 8), torch.nn.Linear(8, 23))
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randint(0, 23, (2, 3, 11))[dist.get_rank()]
    with dcp_runtime.audit(steps=2):
        for row in rows:
            logits = functional.dropout(model(row[:-1]), 0.3)
            loss = functional.cross_entropy(logits, row[1:], reduction="sum") / 20
            loss.backward()
            if sums:
                dcp_runtime.sum_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
    return model[1].weight.detach().clone()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    unwatched = train(sums=True)
    os.environ["DCP_AUDIT"] = sys.argv[1]
    watched = train(sums=True)
    assert torch.equal(watched, unwatched), "the hook has changed a training"
    dist.barrier()
    train(sums=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
