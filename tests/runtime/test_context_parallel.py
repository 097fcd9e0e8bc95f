"""Our balancer in torch's context parallel: exact results, torch's blocks, balanced shares."""

import sys
from pathlib import Path

import numpy as np
import pytest
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
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from dcp_dsl import Sample, Spec, dense_mask
from dcp_runtime import DCPLoadBalancer, RunError
from dcp_runtime.adapters.context_parallel import _Deal

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
    """Be one of four ranks, whose tensors torch cuts, gathers and puts together again.

    FlexAttention has a backward on the CPU, its explicit formula, but refuses to use it; the check
    is lifted here.
    """
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


RANKS = 4
CAUSAL = SPEC.mask("causal").bind(Sample(length=256))
KINDS = ("kv", "full_kv", "q", "full_q")


def balancer_of(calls, rows, ranks=RANKS, **options):
    masks = [SPEC.mask(call) for call in calls]
    bound = [[mask.bind(sample_of(mask, columns)) for mask in masks] for columns in rows]
    return DCPLoadBalancer(bound, ranks, TOKENS, block=BLOCK, **options)


def shares_of(call, rows, token):
    """Cut the dense masks of rows, in the order of a balancer, into the queries of each rank."""
    dense = [d[t][:, t] for d, t in zip(dense_rows(call, rows), token, strict=True)]
    return torch.stack(dense).split(TOKENS // RANKS, 1)


@pytest.mark.dist
def test_attention_of_two_and_of_four_ranks_is_dense_attention(start_ranks, tmp_path):
    assert start_ranks(4, Path(__file__), tmp_path) == ["exact\n"] * 4


@pytest.mark.parametrize(("calls", "rows"), CASES)
def test_every_rank_has_the_blocks_that_torch_finds_by_asking_every_pair(calls, rows):
    balancer = balancer_of(calls, rows)
    token = balancer._generate_indices()
    assert torch.equal(token.sort(1).values, torch.arange(TOKENS).expand_as(token))
    restored = token.gather(1, balancer._generate_indices(restore=True))
    assert torch.equal(restored, torch.arange(TOKENS).expand_as(token))
    share = TOKENS // RANKS
    for number, call in enumerate(calls):
        for rank, mine in enumerate(shares_of(call, rows, token)):
            ours = balancer.block_mask(number, rank)
            theirs = create_block_mask(
                lambda b, h, q, k, mine=mine: mine[b, q, k],
                len(rows), None, share, TOKENS, device="cpu", BLOCK_SIZE=BLOCK,
            )  # fmt: skip
            assert ours.shape == theirs.shape
            for kind in KINDS:
                assert listed(ours, kind) == listed(theirs, kind), (call, rank, kind)
            seen = create_mask(ours.mask_mod, len(rows), 1, share, TOKENS, "cpu")
            assert torch.equal(seen[:, 0], mine)


def listed(mask, kind):
    counts, indices = getattr(mask, f"{kind}_num_blocks"), getattr(mask, f"{kind}_indices")
    return [
        [line[:n].tolist() for n, line in zip(row_counts, row, strict=True)]
        for row_counts, row in zip(counts[:, 0].tolist(), indices[:, 0], strict=True)
    ]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_every_mask_of_a_stack_is_balanced_on_its_own(ranks):
    lengths = [3000, 90, 700, 5000, 2100, 1400, 20, 4074]
    sample = {"d_lens": lengths}, sum(lengths)
    calls = ("causal per d", "causal per d and q - k < 512", "same(d)")
    bound = [SPEC.mask(call).bind(Sample(*sample)) for call in calls]
    balancer = DCPLoadBalancer([bound], ranks, block=64)
    token = balancer._generate_indices()[0].numpy()
    for mask in bound:
        bounds = np.arange(0, sample[1] + 1, 64)
        blocks = np.bincount(mask.count_blocks(bounds, bounds).row, minlength=len(bounds) - 1)
        shares = blocks[token[::64] // 64].reshape(ranks, -1).sum(1)
        assert shares.max() <= 1.01 * shares.mean()


def test_ranks_swap_until_no_swap_saves_a_key_block():
    documents = np.kron(np.eye(8, dtype=bool), np.ones((2, 2), bool))
    deal = _Deal.of(np.ones((16, 1)), documents, np.ones(16, np.int64), np.arange(16) % 2)
    deal.need_less(8.0)
    assert deal.rank[::2].tolist() == deal.rank[1::2].tolist()


def test_ranks_of_a_balanced_mask_keep_neighbouring_tokens():
    token = balancer_of(["full"], [{}])._generate_indices()
    assert torch.equal(token[0], torch.arange(TOKENS))


def test_a_batch_that_cannot_be_balanced_gets_its_best_shares():
    # One block of queries has nearly all work: no share can be even, three can be alike.
    balancer = balancer_of(["k == q or q < 16"], [{}])
    blocks = [balancer.block_mask(rank=rank) for rank in range(RANKS)]
    work = [int(b.kv_num_blocks.sum() + b.full_kv_num_blocks.sum()) for b in blocks]
    assert sorted(work) == [4, 4, 4, 19]


def test_what_does_not_fit_is_refused():
    causal = SPEC.mask("causal").bind(Sample(length=500))
    says = r"a multiple of 512 tokens \(4 ranks, blocks of 128\).* got 500; pad rows to 512"
    with pytest.raises(RunError, match=says):
        DCPLoadBalancer([[causal]], 4)
    with pytest.raises(RunError, match="holds rows of up to 500, got 256"):
        DCPLoadBalancer([[causal]], 2, 256)
    with pytest.raises(RunError, match=r"as many masks for every row.* got \[1, 2\] masks"):
        DCPLoadBalancer([[causal], [causal, causal]], 2, 512)
    with pytest.raises(RunError, match="expected rank="):
        DCPLoadBalancer([[causal]], 2, 512).block_mask()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block": 0}, "block of at least 1 token .* got block=0"),
        ({"tolerance": float("nan")}, "tolerance of at least 0, got .* tolerance=nan"),
        ({"tolerance": -0.1}, "tolerance=-0.1"),
        ({"mesh": 0}, "at least 1 rank, got 0"),
        ({"rows": [[SPEC.mask("causal")]]}, "bound to the samples of row 0, got Mask; .*mask.bind"),
        ({"rows": [["causal"]]}, "bound to the samples of row 0, got str"),
        ({"rows": []}, r"got \[\] masks; give \[\[mask\]\]"),
        ({"rows": [CAUSAL]}, r"got \[Slabs\(.*; give \[\[mask\]\] for one row and mask"),
        ({"rows": CAUSAL}, r"got Slabs\(.*; give \[\[mask\]\] for one row and mask"),
        (
            {"rows": [[SPEC.mask("causal").bind(Sample())]]},
            "got 0; pad rows to 256 and .*tokens=256",
        ),
    ],
)
def test_what_no_share_can_be_made_of_is_refused(options, says):
    with pytest.raises(RunError, match=f"^DCPLoadBalancer: .*{says}"):
        DCPLoadBalancer(**{"rows": [[CAUSAL]], "mesh": 2, **options})


def test_the_ways_out_of_refusals_lead_out():
    bound = SPEC.mask("causal").bind(Sample(length=256))
    assert DCPLoadBalancer([[bound]], 2).block_mask(rank=1).shape == (1, 1, 128, 256)
    empty = SPEC.mask("causal").bind(Sample())
    padded = DCPLoadBalancer([[empty], [bound]], 2, tokens=256).block_mask(rank=0)
    assert padded.to_dense().any(-1).flatten(1).tolist() == [[False], [True]]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"rank": 2}, "a rank from 0 to 1, got 2; the balancer was made for 2 ranks"),
        ({"rank": -1}, "a rank from 0 to 1, got -1"),
        ({"mask": 1, "rank": 0}, "a mask from 0 to 0, got 1; the balancer was made for 1 mask"),
        ({"mask": -1, "rank": 0}, "a mask from 0 to 0, got -1"),
    ],
)
def test_a_rank_or_a_mask_that_is_not_there_has_no_block_mask(asked, says):
    with pytest.raises(RunError, match=f"block_mask: expected {says}"):
        DCPLoadBalancer([[CAUSAL]], 2).block_mask(**asked)


def test_another_private_api_of_torch_is_named(monkeypatch):
    name = "torch.distributed.tensor.experimental._context_parallel._load_balancer"
    monkeypatch.setitem(sys.modules, name, type(sys)(name))
    monkeypatch.delitem(sys.modules, "dcp_runtime.adapters.context_parallel")
    with pytest.raises(RunError, match=rf"torch {torch.__version__.split('+')[0]}.* no such class"):
        __import__("dcp_runtime.adapters.context_parallel")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # inductor's own
def test_the_compiled_kernel_walks_the_blocks_of_a_rank():
    calls, rows = CASES[3]
    balancer = balancer_of(calls, rows)
    token, share = balancer._generate_indices(), TOKENS // RANKS
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, TOKENS, 32, generator=generator) for _ in range(3))
    for number, call in enumerate(calls):
        for rank, mine in enumerate(shares_of(call, rows, token)):
            here = slice(rank * share, (rank + 1) * share)
            block_mask = balancer.block_mask(number, rank)
            out = torch.compile(flex_attention)(q[:, :, here], k, v, block_mask=block_mask)
            scores = (q[:, :, here] @ k.transpose(2, 3)) / 32**0.5
            weights = torch.softmax(scores.masked_fill(~mine[:, None], -torch.inf), -1).nan_to_num()
            torch.testing.assert_close(out, weights @ v, atol=1e-5, rtol=1e-5)


if __name__ == "__main__":
    main()
