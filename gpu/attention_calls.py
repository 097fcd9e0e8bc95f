"""Make attention calls of a case, to time or to compare: our kernels, torch's, dense float64."""

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import torch
from cases import Case
from timing import Call, device
from torch import Tensor

from dcp_planner.plan import decode_part
from dcp_runtime.execute.passes import BackwardPass, ForwardPass, Pass
from dcp_runtime.kernels.kernel import Kernel, QueryRows
from dcp_runtime.plans.device_plan import DevicePlan, prepare_device

Calls = tuple[Call, Call]  # forward and backward


def device_plan(case: Case, kernel: Kernel) -> DevicePlan:
    """Return the plan of a case for one rank, ready for a kernel."""
    return prepare_device(decode_part(case.parts()[0]).plan, 0, kernel.segment_rows)


def inputs(case: Case, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, kv and the gradient of out, in packed order."""
    generator = torch.Generator(device()).manual_seed(0)  # 64k tokens take seconds on the host
    heads, kv_heads = case.heads
    shapes = (
        (case.tokens, heads, case.head_dim),
        (case.tokens, 2, kv_heads, case.head_dim),
        (case.tokens, heads, case.head_dim),
    )
    q, kv, dout = (
        torch.randn(s, generator=generator, device=device(), dtype=dtype) for s in shapes
    )
    return q, kv, dout


def kernel_calls(kernel: Kernel, part: DevicePlan, q: Tensor, kv: Tensor, dout: Tensor) -> Calls:
    """Return forward and backward of a kernel on the tables of a plan, without the executor.

    Both leave results in the type of q: sums that the kernel does not begin or end itself are
    cleared before and converted behind, as in a layer.
    """
    tokens = torch.from_numpy(part.plan.local_tokens(0)).to(q.device)
    q, kv, dout = q[tokens], kv[tokens], dout[tokens]

    def run(current: Pass) -> tuple[Tensor, ...]:
        for table in part.of(current.direction).tables:
            current.attend(kernel, table)
        return current.result()

    def forward() -> tuple[Tensor, ...]:
        return run(ForwardPass(part, q, kv, finishes=kernel.finishes))

    out, lse = forward()
    rows = QueryRows(q, dout, lse, kernel.delta(out, dout))
    return forward, lambda: run(BackwardPass(part, rows, kv, finishes=kernel.finishes))


def torch_calls(case: Case, name: str) -> Calls:
    """Return torch's causal attention by one of its backends."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    backends = {
        "torch flash": SDPBackend.FLASH_ATTENTION,
        "torch cudnn": SDPBackend.CUDNN_ATTENTION,
    }
    q, kv, dout = inputs(case, torch.bfloat16)
    group = q.shape[1] // kv.shape[2]
    k, v = (kv[:, half].repeat_interleave(group, 1) for half in (0, 1))

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backends[name]):
            return scaled_dot_product_attention(q, k, v, is_causal=True)

    return _autograd_calls(forward, (q, k, v), dout)


def flex_calls(case: Case, name: str) -> Calls:
    """Return compiled FlexAttention on the block mask of the case."""
    from torch.nn.attention.flex_attention import flex_attention

    from dcp_runtime.adapters.flex_mask import flex_block_mask

    q, kv, dout = inputs(case, torch.bfloat16)
    mask, sample = case.mask_and_sample()
    block_mask = flex_block_mask(mask.bind(sample), device=device())
    compiled = torch.compile(flex_attention, dynamic=False)

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return cast(Tensor, compiled(q, k, v, block_mask=block_mask, enable_gqa=True))

    return _autograd_calls(forward, (q, kv[:, 0], kv[:, 1]), dout)


def _autograd_calls(
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    qkv: tuple[Tensor, Tensor, Tensor],
    dout: Tensor,
) -> Calls:
    """Return forward and backward of attention on tensors ``[1, heads, tokens, head_dim]``."""
    q, k, v = (x.transpose(0, 1).unsqueeze(0).detach().requires_grad_() for x in qkv)
    upstream = dout.transpose(0, 1).unsqueeze(0)
    out = attend(q, k, v)
    return (
        partial(attend, q, k, v),
        lambda: torch.autograd.grad(out, (q, k, v), upstream, retain_graph=True),
    )


def values_of(
    kernel: Kernel, part: DevicePlan, q: Tensor, kv: Tensor, dout: Tensor
) -> dict[str, Tensor]:
    """Return out, dq and dkv of a kernel in packed order."""
    forward, backward = kernel_calls(kernel, part, q, kv, dout)
    (out, _), (dq, dkv) = forward(), backward()
    tokens = torch.from_numpy(np.argsort(part.plan.local_tokens(0))).to(q.device)
    return {"out": out[tokens], "dq": dq[tokens], "dkv": dkv[tokens]}


def dense_values(q: Tensor, kv: Tensor, dout: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """Return out and gradients of dense attention in float64; rows that see nothing give 0."""
    leaves = q.double().requires_grad_(), kv.double().requires_grad_()
    group = q.shape[1] // kv.shape[2]
    k, v = (leaves[1][:, half].repeat_interleave(group, 1) for half in (0, 1))
    scores = torch.einsum("qhd,khd->hqk", leaves[0], k) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num(0.0)
    out = torch.einsum("hqk,khd->qhd", weights, v)
    dq, dkv = torch.autograd.grad(out, leaves, dout.double())
    return {"out": out.detach(), "dq": dq, "dkv": dkv}
