"""No head loses its digits, whatever a key, a sink or a partial result of another head weighs."""

import pytest
import torch
from test_attention_options import draw, found, make

from dcp_runtime.kernels.kernel import AttentionState

NAMES = ("out", "dq", "dk", "dv", "dsinks")
SINKS = (16.0, 30.0, -30.0, -torch.inf)
SCORE = 20.0


def wide_scores(q, k, v, sinks):
    """Scores from about -30 to 30."""
    q *= 30 * q.shape[-1] ** 0.5 / 3 / k.norm(dim=-1).max()


def a_key_that_takes_almost_all(q, k, v, sinks):
    """The first key, as trained models have it: of scores near 20, and of a small value."""
    q[..., 0], k[..., 0] = q.shape[-1] ** 0.5, 0
    k[0, :, 0] = SCORE
    v[0] *= 1e-7


def equal_parts(q, k, v, sinks):
    """All keys weigh alike and have the same value."""
    k *= 0
    v[:] = 1


def a_sink_beside_a_key(q, k, v, sinks):
    """A key that takes almost all but what a sink takes, or the other way round."""
    a_key_that_takes_almost_all(q, k, v, sinks)
    sinks += SCORE


CASES = (wide_scores, a_key_that_takes_almost_all, equal_parts, a_sink_beside_a_key)


def make_hard(case, tensors, dtype):
    """Return q, k, v and sinks of a case in a dtype, made of float64 tensors."""
    q, k, v = (x.clone() for x in tensors)
    sinks = torch.tensor(SINKS, dtype=torch.float64).repeat(q.shape[1])[: q.shape[1]]
    case(q, k, v, sinks)
    return [x.to(dtype) for x in (q, k, v, sinks)]


def eager(tensors, dout, mask, dtype):
    """Return out and gradients, weights ``[H, T, T + 1]`` with a column of sinks, and lse."""
    q, k, v, sinks = leaves = [x.to(dtype).clone().requires_grad_() for x in tensors]
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, wide_k) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~torch.tensor(mask), -torch.inf)
    scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(q), 1)], -1)
    is_blind = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(is_blind, 0.0).softmax(-1).masked_fill(is_blind, 0.0)
    out = torch.einsum("hqk,khd->qhd", weights[..., :-1], wide_v)
    gradients = torch.autograd.grad(out, leaves, dout.to(dtype))
    lse = torch.logsumexp(scores.detach(), -1).masked_fill(is_blind[..., 0], 0.0)
    return dict(zip(NAMES, (out.detach(), *gradients), strict=True)), weights.detach(), lse


def roundings(tensors, dout, exact, weights, lse):
    """Return, by head, what rounding out, lse and delta may change of each tensor."""
    q, k, v, dout, out = (x.double() for x in (*tensors[:3], dout, exact["out"]))
    kv_heads, scale = k.shape[1], q.shape[-1] ** -0.5
    k, v = (x.repeat_interleave(q.shape[1] // kv_heads, 1) for x in (k, v))
    unit = torch.finfo(tensors[0].dtype).eps
    unit_of_sums = torch.finfo(torch.promote_types(tensors[0].dtype, torch.float32)).eps
    size_q, size_k, size_v, size_dout, size_out = (x.norm(dim=-1).T for x in (q, k, v, dout, out))
    delta, p = (dout * out).sum(-1).T, weights[..., :-1]
    of_weight = unit_of_sums * (1 + lse.abs() / 2)
    of_delta = unit * (dout * out).norm(dim=-1).T + unit_of_sums * size_dout * size_out
    ds = p * (torch.einsum("qhd,khd->hqk", dout, v) - delta[..., None])
    off = of_weight[..., None] * ds.abs() + of_delta[..., None] * p
    by_token = {
        "out": of_weight * (p * size_v[:, None]).sum(-1),
        "dq": scale * (off * size_k[:, None]).sum(-1),
        "dk": scale * (off * size_q[..., None]).sum(1),
        "dv": (of_weight[..., None] * p * size_dout[..., None]).sum(1),
        "dsinks": weights[..., -1] * (of_weight * delta.abs() + of_delta),
    }
    norms = {name: value.norm(dim=-1) for name, value in by_token.items()}
    for name in ("dk", "dv"):  # the query heads of a kv head add up
        norms[name] = norms[name].view(kv_heads, -1).sum(1)
    return norms


def by_head(tensor):
    """Return the norm of each head of ``[T, H, D]``, or of each number of ``[H]``."""
    tensor = tensor.double()
    return tensor.abs() if tensor.ndim == 1 else tensor.transpose(0, 1).flatten(1).norm(dim=1)


def assert_as_exact_as_eager(got, tensors, dout, mask):
    """Compare tensors by name with dense attention of q, k, v and sinks, head by head."""
    exact, weights, lse = eager(tensors, dout, mask, torch.float64)
    same, *_ = eager(tensors, dout, mask, tensors[0].dtype)
    unavoidable = roundings(tensors, dout, exact, weights, lse)
    units = 16 if tensors[0].dtype == torch.float64 else 1
    for name, value in got.items():
        want = exact[name]
        allowed = 2 * by_head(same[name].double() - want) + units * unavoidable[name]
        allowed += units * torch.finfo(tensors[0].dtype).eps * by_head(want)
        error = by_head(value.double() - want)
        assert (error <= allowed).all(), f"{name}: {error.tolist()} > {allowed.tolist()}"


def assert_merged_as_one(merge, seed):
    """Merge partial results of float32 one after another; each number must keep its digits.

    Every part brings as much to the sum as any other: those of small weights hold large numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    parts, rows, heads, dim = 6, 40, 2, 32
    lse = 60 * torch.rand(parts, rows, heads, generator=generator) - 30
    lse[:, :5] = lse[:1, :5]  # of equal weights
    lse[torch.rand(lse.shape, generator=generator) < 0.2] = -torch.inf
    lse[:, 7] = -torch.inf  # a row that sees nothing
    outs = torch.randn(parts, rows, heads, dim, generator=generator)
    outs *= torch.exp(-lse).masked_fill(lse == -torch.inf, 0.0)[..., None]
    out, total = torch.zeros(rows, heads, dim), torch.full((rows, heads), -torch.inf)
    for part, part_lse in zip(outs, lse, strict=True):
        merge(out, total, part, part_lse)
    top = lse.double().amax(0).masked_fill((lse == -torch.inf).all(0), 0.0)
    weights = torch.exp(lse.double() - top)
    share = (weights / weights.sum(0).clamp_min(1e-300))[..., None]
    error, size = (out - (share * outs).sum(0)).abs(), (share * outs).abs().sum(0)
    unit = torch.finfo(torch.float32).eps
    assert (error <= parts * unit * (2 + top.abs()[..., None]) * size).all()
    expected = top + weights.sum(0).log()
    assert torch.equal(total == -torch.inf, expected == -torch.inf)
    torch.testing.assert_close(total.double(), expected, rtol=parts * unit, atol=parts * unit)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("kernel", ["cpu", "reference"])
def test_sinks_and_keys_of_any_weight_are_as_exact_as_in_eager(lab, kernel, dtype, case):
    plan, mask = make(lab, ranks=3)
    (*qkv, _), dout = draw(70, 4, 2, 8, 8, torch.float64)
    tensors, dout = make_hard(case, qkv, dtype), dout.to(dtype)
    got = found(plan, tensors, dout, kernel)
    assert_as_exact_as_eager(got, tensors, dout, mask)


@pytest.mark.parametrize("seed", range(3))
def test_parts_of_any_weight_keep_their_digits(seed):
    def merge(out, lse, part, part_lse):
        AttentionState(out, lse).merge(0, part, part_lse)

    assert_merged_as_one(merge, seed)
