"""One of four ranks of torch's context parallel with our balancer: as torchrun starts it.

Tensors are cut, gathered and put together again by torch; the reference is dense attention in
float64 under the mask evaluated pair by pair. FlexAttention has a backward on the CPU, its explicit
formula, but refuses to use it; the check is lifted here.
"""

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _ContextParallel,
    context_parallel_unshard,
)
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.attention import flex_attention as flex

from dcp_dsl import Sample, Spec, dense_mask
from dcp_runtime import DCPLoadBalancer

SPEC = Spec.from_text("""
segment part = question[q_len] answer[a_lens]*
segment d = [d_lens]*
""")
TOKENS, BLOCK = 256, 16
DOCUMENTS = {"d_lens": [51, 3, 100, 17, 44]}, {"d_lens": [20, 150, 38, 16, 25]}
CASES = (  # the masks of a model, and the columns of each row of the batch
    (["causal"], [{}]),
    (["streaming(8, 20)", "causal"], [{}]),
    (["causal per d"], DOCUMENTS[:1]),
    (["causal per d", "sliding(30)", "same(d)"], DOCUMENTS),
    (["causal and (k in question or same(answer))"], [{"q_len": 50, "a_lens": [75, 25, 92]}]),
    (["causal and k % 3 != 1"], [{}]),
    (["false", "full"], [{}]),
)


class Attention(torch.nn.Module):
    def forward(self, query, key, value, block_mask):
        return flex.flex_attention(query, key, value, block_mask=block_mask, enable_gqa=True)


def attend(q, k, v, seen):
    """Dense attention: [B, H, N, D] under bool [B, N, N]; a query that sees nothing gives 0."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~seen[:, None], -torch.inf)
    sees_any = seen.any(2)[:, None, :, None]
    weights = torch.softmax(scores.masked_fill(~sees_any, 0.0), -1)
    return (weights * sees_any) @ v


def dense_rows(call, rows):
    """The mask of every row of the batch, from its text, padded with what sees nothing."""
    mask = SPEC.mask(call)
    dense = np.zeros((len(rows), TOKENS, TOKENS), bool)
    for place, columns in enumerate(rows):
        sample = sample_of(mask, columns)
        dense[place, : sample.length, : sample.length] = dense_mask(mask, sample)
    return torch.from_numpy(dense)


def sample_of(mask, columns):
    length = sum(int(np.sum(column)) for column in columns.values()) or TOKENS - 12
    return Sample({name: columns[name] for name in mask.columns}, length)


def check(calls, rows, mesh, number):
    """Run attention under one of the masks that are balanced together."""
    masks = [SPEC.mask(call) for call in calls]
    bound = [[mask.bind(sample_of(mask, columns)) for mask in masks] for columns in rows]
    balancer = DCPLoadBalancer(bound, mesh, TOKENS, block=BLOCK)
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, 8), (2, 8), (2, 8), (4, 8))
    whole = [
        torch.randn(len(rows), h, TOKENS, d, generator=generator, dtype=torch.float64)
        for h, d in sizes
    ]
    q, k, v, dout = _context_parallel_shard(mesh, whole, [2] * 4, balancer)
    assert q.shape[2] == TOKENS // mesh.size()
    style = _ContextParallel(2, _ContextParallel.AttentionType.FLEX)
    attention = parallelize_module(Attention(), mesh, style)
    mine = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attention(*mine, block_mask=balancer.block_mask(number))
    gradients = torch.autograd.grad(out, mine, dout)
    got = context_parallel_unshard(mesh, [out.detach(), *gradients], [2] * 4, balancer)
    leaves = [x.clone().requires_grad_() for x in whole[:3]]
    wanted = attend(*leaves, dense_rows(calls[number], rows))
    wanted = [wanted.detach(), *torch.autograd.grad(wanted, leaves, whole[3])]
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def main():
    torch.set_num_threads(1)
    flex._validate_device = lambda *_: None
    flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # the same formula, not traced
    dist.init_process_group("gloo")
    halves = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    # Each half runs another mask.
    check(*CASES[3], halves["context"], 1 + halves["data"].get_local_rank())
    check(*CASES[1], init_device_mesh("cpu", (4,)), 0)
    dist.destroy_process_group()
    print("exact")


if __name__ == "__main__":
    main()
