"""Training loops that use the executor, on loopback worlds: several ranks in this process.

Each scenario is called on every rank with its transport and cases, each a plan and q, kv, dout, and
gives what is compared with dense attention: the number of the case, this rank's rows, tensors.
"""

from functools import partial

import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.utils.checkpoint import checkpoint

from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans

CHECKPOINTS = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "non-reentrant": partial(checkpoint, use_reentrant=False),
}


def leaves(plan, rank, q, kv):
    rows = torch.tensor(plan.local_tokens(rank))
    return q[rows].clone().requires_grad_(), kv[rows].clone().requires_grad_(), rows


def attend(prepared, number, case, rank, wrap=lambda call, *arguments: call(*arguments)):
    """One layer of a batch: gives what `finish` needs."""
    plan, qkv = case
    q, kv, rows = leaves(plan, rank, *qkv[:2])
    out = wrap(lambda q, kv: DCPAttn.apply(prepared, q, kv), q, kv)
    return number, out, q, kv, rows, qkv[2]


def finish(layer):
    number, out, q, kv, rows, dout = layer
    out.backward(dout[rows].to(out.dtype))
    return number, rows, {"out": out.detach(), "dq": q.grad, "dkv": kv.grad}


def layers_forward_then_backward(transport, cases):
    executor = DCPExecutor(transport=transport, check_finite=True)
    prepared = executor.prepare(cases[0][0])
    layers = [attend(prepared, 0, cases[0], transport.rank) for _ in range(3)]
    return [finish(layer) for layer in reversed(layers)]


def one_batch_at_a_time_by_the_executor_alone(transport, cases, wrap=None):
    executor = DCPExecutor(transport=transport)
    found = []
    for number, case in enumerate(cases):
        executor.prepare(case[0])
        options = {} if wrap is None else {"wrap": wrap}
        found.append(finish(attend(executor, number, case, transport.rank, **options)))
    return found


def batches_without_backward_by_the_executor_alone(transport, cases):
    executor = DCPExecutor(transport=transport)
    for case in cases:
        executor.prepare(case[0])
        with torch.no_grad():
            out = attend(executor, 0, case, transport.rank)
        assert out[1].grad_fn is None
    executor.prepare(cases[0][0])
    return [finish(attend(executor, 0, cases[0], transport.rank))]


def forward_of_all_batches_before_any_backward(transport, cases, wrap=None):
    executor = DCPExecutor(transport=transport)
    options = {} if wrap is None else {"wrap": wrap}
    layers = [
        attend(executor.prepare(case[0]), number, case, transport.rank, **options)
        for number, case in enumerate(cases)
    ]
    return [finish(layer) for layer in layers]


def interleaved_order(transport, cases, wrap):
    """A pipeline's step: each rank has two chunks of the model, each batch passes them in turn.

    All plans are prepared before the first chunk runs, as `torch.distributed.pipelining` wants it.
    """
    executor = DCPExecutor(transport=transport, micro_batches=len(cases))
    plans = [LayerPlans.prepare(executor, case[0]) for case in cases]
    is_open, found = {}, []

    def forward(batch, chunk):
        plan = plans[batch].of(chunk)
        is_open[batch, chunk] = attend(plan, batch, cases[batch], transport.rank, wrap)

    def backward(batch, chunk):
        found.append(finish(is_open.pop((batch, chunk))))

    last = len(cases) - 1
    forward(0, 0), forward(1, 0), forward(0, 1)
    for batch in range(1, last):
        forward(batch + 1, 0), backward(batch - 1, 1), forward(batch, 1), backward(batch - 1, 0)
    backward(last - 1, 1), forward(last, 1), backward(last, 1)
    backward(last - 1, 0), backward(last, 0)
    assert not is_open
    return found


def strided(call, q, kv):
    q = q.transpose(0, 1).contiguous().transpose(0, 1)
    kv = kv.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    return call(q, kv)


def compiled_whole(transport, cases, graphs):
    def keep(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    executor = DCPExecutor(transport=transport)
    found = []

    @torch.compile(backend=aot_autograd(fw_compiler=keep), fullgraph=True)
    def block(prepared, q, kv):
        return DCPAttn.apply(prepared, q * 1.0, kv * 1.0) * 1.0

    for number, (plan, qkv) in enumerate(cases):
        prepared = executor.prepare(plan)
        q, kv, rows = leaves(plan, transport.rank, *qkv[:2])
        found.append(finish((number, block(prepared, q, kv), q, kv, rows, qkv[2])))
    return found


SCENARIOS = {
    "layers forward, then backward": layers_forward_then_backward,
    "one batch at a time": one_batch_at_a_time_by_the_executor_alone,
    "batches without backward": batches_without_backward_by_the_executor_alone,
    "all forward before any backward": forward_of_all_batches_before_any_backward,
    "strided arguments": partial(one_batch_at_a_time_by_the_executor_alone, wrap=strided),
}
for name, wrap in CHECKPOINTS.items():
    SCENARIOS |= {
        f"{name} checkpoints, all open": partial(
            forward_of_all_batches_before_any_backward, wrap=wrap
        ),
        f"{name} checkpoints, interleaved": partial(interleaved_order, wrap=wrap),
    }
