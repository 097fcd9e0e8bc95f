"""The flash backend on the CPU: everything but the CUDA operators, which stand-ins replace."""

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from dcp_runtime.kernels.flash import FlashKernel

_path = Path(__file__).with_name("test_kernels.py")
_spec = importlib.util.spec_from_file_location("kernel_tests", _path)
kernel_tests = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernel_tests)


class DenseSegments:
    """What FlashAttention-2 promises for variable-length calls, segment by segment in float64."""

    def weights(self, q, k, call, scale, lse=None):
        group = q.shape[1] // k.shape[1]
        for (a, c), (b, d) in pairwise(
            zip(call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist(), strict=True)
        ):
            assert b - a <= call.max_q
            assert d - c <= call.max_k
            keys = k[c:d].double().repeat_interleave(group, 1)
            scores = torch.einsum("qhd,khd->hqk", q[a:b].double(), keys) * scale
            if call.causal:  # aligned at the bottom right
                i, j = torch.arange(b - a)[:, None], torch.arange(d - c)[None, :]
                scores = scores.masked_fill(j > i + (d - c) - (b - a), -torch.inf)
            own = torch.logsumexp(scores, -1)
            base = own if lse is None else lse[:, a:b].double()
            yield slice(a, b), slice(c, d), torch.exp(scores - base.unsqueeze(-1)), own

    def forward(self, q, k, v, call, scale):
        out, lse = torch.zeros_like(q), torch.zeros(q.shape[1], len(q))
        for rows, keys, weights, own in self.weights(q, k, call, scale):
            values = v[keys].double().repeat_interleave(q.shape[1] // k.shape[1], 1)
            out[rows] = torch.einsum("hqk,khd->qhd", weights, values).to(q.dtype)
            lse[:, rows] = own.float()
        return out, lse

    def backward(self, tensors, call, scale):
        dout, q, k, v, out, lse = tensors
        dq, dk, dv = (torch.zeros(x.shape, dtype=torch.float64) for x in (q, k, v))
        delta = (dout.double() * out.double()).sum(-1)
        group = q.shape[1] // k.shape[1]
        for rows, keys, weights, _ in self.weights(q, k, call, scale, lse):
            spread = [x[keys].double().repeat_interleave(group, 1) for x in (k, v)]
            change = torch.einsum("qhd,khd->hqk", dout[rows].double(), spread[1])
            dscores = weights * (change - delta[rows].T.unsqueeze(-1)) * scale
            dq[rows] += torch.einsum("hqk,khd->qhd", dscores, spread[0])
            for total, part, x in ((dk, dscores, q), (dv, weights, dout)):
                full = torch.einsum("hqk,qhd->khd", part, x[rows].double())
                total[keys] += full.reshape(len(full), k.shape[1], group, -1).sum(2)
        return tuple(x.to(q.dtype) for x in (dq, dk, dv))


@pytest.mark.parametrize("mask", ["causal", "streaming", "blind_rows", "scattered", "full"])
@pytest.mark.parametrize("heads", ["gqa", "mqa"])
def test_gathered_calls_are_as_exact_as_eager_attention(lab, mask, heads):
    sparsity = lab.sparsity_of([lab.masks[mask](n) for n in (50, 1, 23)], 24)
    qkv = lab.random_qkv(1, 74, *kernel_tests.HEADS[heads], 16, torch.float32)
    got = kernel_tests.run_kernel(FlashKernel(DenseSegments()), sparsity, qkv, seed=2)
    lab.assert_as_exact_as_eager(got, *qkv, kernel_tests.dense_of(sparsity))
