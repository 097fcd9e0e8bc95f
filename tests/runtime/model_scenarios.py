"""How training loops use the executor, on loopback worlds: several ranks in this process.

Each scenario is called on every rank with its transport and gives what is compared with dense
attention, or asserts what it states.
"""

import torch
from torch.utils.checkpoint import checkpoint

from dcp_runtime import DCPAttn, DCPExecutor


def leaves(plan, rank, q, kv):
    rows = torch.tensor(plan.local_tokens(rank))
    return q[rows].clone().requires_grad_(), kv[rows].clone().requires_grad_(), rows


def attend(executor, plan, rank, qkv, wrap=None):
    """One layer: gives rows and tensors after `backward` has been called on its output."""
    q, kv, rows = leaves(plan, rank, *qkv[:2])
    call = wrap or (lambda q, kv: DCPAttn.apply(executor, q, kv))
    return call(q, kv), q, kv, rows


def finish(layer, dout):
    out, q, kv, rows = layer
    out.backward(dout[rows].to(out.dtype))
    return rows, {"out": out.detach(), "dq": q.grad, "dkv": kv.grad}


def layers_forward_then_backward(transport, cases):
    (plan, qkv), *_ = cases
    executor = DCPExecutor(transport=transport, check_finite=True)
    executor.prepare(plan)
    layers = [attend(executor, plan, transport.rank, qkv) for _ in range(3)]
    return [finish(layer, qkv[2]) for layer in reversed(layers)]


def micro_batches_with_plans_of_their_own(transport, cases):
    executor = DCPExecutor(transport=transport)
    found = []
    for plan, qkv in cases:
        executor.prepare(plan)
        found.append(finish(attend(executor, plan, transport.rank, qkv), qkv[2]))
    return found


def forward_of_all_batches_before_any_backward(transport, cases):
    executor = DCPExecutor(transport=transport)
    layers = []
    for plan, qkv in cases:
        executor.prepare(plan)
        layers.append(attend(executor, plan, transport.rank, qkv))
    return [finish(layer, qkv[2]) for layer, (_, qkv) in zip(layers, cases, strict=True)]


def activation_checkpointing(transport, cases):
    executor = DCPExecutor(transport=transport)
    found = []
    for plan, qkv in cases:
        executor.prepare(plan)

        def again(q, kv):
            return checkpoint(
                lambda q, kv: DCPAttn.apply(executor, q, kv), q, kv, use_reentrant=False
            )

        found.append(finish(attend(executor, plan, transport.rank, qkv, again), qkv[2]))
    return found


def strided_arguments(transport, cases):
    executor = DCPExecutor(transport=transport)
    found = []
    for plan, qkv in cases:
        executor.prepare(plan)

        def strided(q, kv):
            q = q.transpose(0, 1).contiguous().transpose(0, 1)
            kv = kv.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
            return DCPAttn.apply(executor, q, kv)

        found.append(finish(attend(executor, plan, transport.rank, qkv, strided), qkv[2]))
    return found


def compiled_around(transport, cases):
    executor = DCPExecutor(transport=transport)
    found = []
    for plan, qkv in cases:
        executor.prepare(plan)

        @torch.compile(backend="eager", fullgraph=False)
        def block(q, kv, executor=executor):
            return DCPAttn.apply(executor, q * 1.0, kv * 1.0) * 1.0

        found.append(finish(attend(executor, plan, transport.rank, qkv, block), qkv[2]))
    return found


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        layers_forward_then_backward,
        micro_batches_with_plans_of_their_own,
        forward_of_all_batches_before_any_backward,
        activation_checkpointing,
        strided_arguments,
    )
}
