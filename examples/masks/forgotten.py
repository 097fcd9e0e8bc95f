"""Train a small model on every rank's own rows. One line is forgotten: `dcpm audit` finds it."""

import torch
import torch.distributed as dist
from torch.nn import functional

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = torch.randint(0, 50, (16, 12))
model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(8 // ranks):
    batch = rows[(step * ranks + rank) * 2 :][:2]
    logits = model(batch[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    # Here the gradients of all ranks should be averaged.
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
