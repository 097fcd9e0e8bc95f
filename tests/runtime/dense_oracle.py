"""Dense attention by autograd, masks as matrices, plans of them, and runs of layers to compare."""

from collections.abc import Callable

import numpy as np
import torch
from dense_blocks import sparsity_of

from dcp_planner import Cluster, ModelShape, Plan, PlanConfig, build_plan
from dcp_planner.causes.alternatives import workload_of
from dcp_planner.model.problem import Placement
from dcp_planner.schedule.divisions import Manner, Schedule
from dcp_planner.schedule.emission import assemble
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.transport.loopback import LoopbackWorld
from dcp_runtime.transport.recorder import Recorder


def attend(
    q: torch.Tensor, kv: torch.Tensor, mask: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Eager attention in the dtype of q: [T, H, D] and [T, 2, Hkv, D] to out and lse [T, H]."""
    groups = q.shape[1] // kv.shape[2]
    k, v = (kv[:, i].repeat_interleave(groups, 1).transpose(0, 1) for i in (0, 1))
    seen = torch.tensor(mask)
    scores = q.transpose(0, 1) @ k.transpose(1, 2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~seen, -torch.inf)
    sees_any = seen.any(1)
    weights = torch.softmax(scores.masked_fill(~sees_any[:, None], 0.0), -1)
    out = (weights * sees_any[:, None].to(q.dtype)) @ v
    return out.transpose(0, 1), torch.logsumexp(scores, -1).T


def eager(q, kv, dout, mask) -> dict[str, torch.Tensor]:
    """out, lse, dq, dkv by autograd, in the dtype of the arguments."""
    q, kv = q.detach().clone().requires_grad_(), kv.detach().clone().requires_grad_()
    out, lse = attend(q, kv, mask)
    dq, dkv = torch.autograd.grad(out, (q, kv), dout)
    return {"out": out.detach(), "lse": lse.detach(), "dq": dq, "dkv": dkv}


def summed_terms(q, kv, dout, mask) -> dict[str, float]:
    """Norms of what is summed into each tensor: what rounding is relative to when terms cancel."""
    groups = q.shape[1] // kv.shape[2]
    k, v = (kv[:, i].repeat_interleave(groups, 1).transpose(0, 1).norm(dim=-1) for i in (0, 1))
    scores = (q.transpose(0, 1) @ kv[:, 0].repeat_interleave(groups, 1).permute(1, 2, 0)).div(
        q.shape[-1] ** 0.5
    )
    p = torch.softmax(scores.masked_fill(~torch.tensor(mask), -torch.inf), -1).nan_to_num(0.0)
    weighted = p * dout.norm(dim=-1).T[..., None] * v[:, None] * q.shape[-1] ** -0.5
    dq, dk = (weighted * k[:, None]).norm(), (weighted * q.norm(dim=-1).T[..., None]).norm()
    out, dv = (p * v[:, None]).norm(), (p * dout.norm(dim=-1).T[..., None]).norm()
    return {"out": float(out), "lse": float(len(q)) ** 0.5, "dq": float(dq), "dkv": float(dk + dv)}


def assert_as_exact_as_eager(got: dict[str, torch.Tensor], q, kv, dout, mask) -> None:
    """Every tensor within twice the error of eager attention of the same dtype, plus rounding."""
    exact = eager(q.double(), kv.double(), dout.double(), mask)
    terms = summed_terms(q.double(), kv.double(), dout.double(), mask)
    same = eager(q, kv, dout, mask)
    # In float64 eager attention is the reference itself, whose own rounding counts then.
    units = 16 if q.dtype == torch.float64 else 1
    sums = torch.finfo(torch.promote_types(q.dtype, torch.float32)).eps
    for name, value in got.items():
        want = exact[name]
        seen = torch.isfinite(want)
        assert (torch.isfinite(value) == seen).all(), f"{name}: NaN or infinite values"
        error = float((value.double() - want)[seen].norm())
        allowed = 2 * float((same[name].double() - want)[seen].norm())
        allowed += units * torch.finfo(q.dtype).eps * float(want[seen].norm())
        allowed += units * sums * terms[name]
        assert error <= allowed, f"{name}: {error} > {allowed}"


def random_qkv(seed: int, tokens: int, q_heads: int, kv_heads: int, dim: int, dtype: torch.dtype):
    """Seeded q, kv and dout."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((tokens, q_heads, dim), (tokens, 2, kv_heads, dim), (tokens, q_heads, dim))
    return tuple(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes)


def causal(n: int) -> np.ndarray:
    return np.tril(np.ones((n, n), bool))


def streaming(n: int, sink: int = 5, window: int = 12) -> np.ndarray:
    q, kv = np.ogrid[:n, :n]
    return (kv <= q) & ((kv < sink) | (q - kv < window))


def blind_rows(n: int) -> np.ndarray:
    mask = causal(n)
    mask[n // 3 : n // 2] = False
    mask[-1] = False
    return mask


def scattered(n: int) -> np.ndarray:
    """Many ranges per row, rows that see nothing, keys that nobody sees."""
    return np.random.default_rng(n).random((n, n)) < 0.3


MASKS: dict[str, Callable[[int], np.ndarray]] = {
    "causal": causal,
    "streaming": streaming,
    "blind_rows": blind_rows,
    "scattered": scattered,
    "full": lambda n: np.ones((n, n), bool),
}


def plan_of(
    masks, ranks=1, *, block=16, heads=(4, 2, 8), dtype_bytes=4, cluster=None,
    layout="static:zigzag", **choices,
):  # fmt: skip
    """Plan masks, packed one behind the other, each dense or a name of `MASKS` with its length.

    `heads` are those of q and of kv, and the size of one; `choices` are others of `PlanConfig`.
    """
    dense = [MASKS[mask[0]](mask[1]) if isinstance(mask, tuple) else mask for mask in masks]
    shape, cluster = ModelShape(*heads, dtype_bytes), cluster or Cluster(1, ranks)
    return build_plan(sparsity_of(dense, block), shape, cluster, PlanConfig(layout, **choices))


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


def dense_of(plan) -> np.ndarray:
    """Return the mask of a whole plan, row by row of its slabs."""
    dense = np.zeros((plan.num_tokens, plan.num_tokens), bool)
    for q0, q1, k0, k1, a, b in plan.slabs.table().tolist():
        for q in range(q0, q1):
            dense[q, k0 + a * (q - q0) : k1 + b * (q - q0)] = True
    return dense


def run_in_threads(
    plan, q, kv, dout, kernel=None, layers=1
) -> tuple[dict[str, torch.Tensor], list[Recorder]]:
    """Run all ranks of a plan in this process: all layers forward, then all backward.

    Receive buffers are poisoned, and whatever is not finite ends the run.
    """

    def run_rank(transport):
        executor = DCPExecutor(kernel=kernel, transport=transport, check_finite=True)
        return *run_layers(executor, plan, (q, kv, dout), layers), executor.prepared.recorder

    parts = LoopbackWorld(plan.num_devices, timeout_s=60).run(run_rank)
    whole = whole_of([part[:2] for part in parts], len(q))
    return whole, [recorder for *_, recorder in parts]


def check_plan(plan, dense, seed, dtype=torch.float32, **options) -> dict[str, torch.Tensor]:
    """Run drawn tensors on all ranks of a plan and compare them with eager attention."""
    shape = plan.shape
    qkv = random_qkv(seed, len(dense), shape.q_heads, shape.kv_heads, shape.head_dim, dtype)
    got, _ = run_in_threads(plan, *qkv, **options)
    assert_as_exact_as_eager(got, *qkv, dense)
    return got


def striped(plan: Plan, *, is_frugal: bool = False) -> Plan:
    """Let the blocks of a plan cross between nodes through the ports of all devices."""
    tiles, manner = plan.tiles, Manner("node", is_frugal, is_striped=True)
    schedule = Schedule(tiles.division, tiles.backward_division, (manner, manner))
    placement = Placement(plan.blocks.owner, tiles.device)
    return assemble(workload_of(plan), plan.cluster, placement, schedule, "striped")
