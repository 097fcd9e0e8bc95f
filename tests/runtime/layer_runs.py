"""Layers of a plan run on one rank, and the rows of all ranks brought together."""

import torch


def run_layers(executor, plan, qkv, layers=1):
    """Run layers, all forward and then all backward; give rows and results of this rank's last."""
    prepared = executor.prepare(plan)
    rows = torch.tensor(plan.local_tokens(executor.rank))
    q, kv, dout = (x[rows] for x in qkv)
    results = [prepared.forward(q, kv) for _ in range(layers)]
    for out, lse in results:
        dq, dkv = prepared.backward(q, kv, out, lse, dout)
    return rows, {"out": out, "lse": lse, "dq": dq, "dkv": dkv}


def whole_of(parts, tokens: int) -> dict[str, torch.Tensor]:
    """Bring rows of all ranks together, each with tensors by name; NaN where no rank has one."""
    whole = {}
    for rows, tensors in parts:
        for name, value in tensors.items():
            empty = value.new_full((tokens, *value.shape[1:]), torch.nan)
            whole.setdefault(name, empty)[rows] = value
    return whole
