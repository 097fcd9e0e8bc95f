"""Our balancer in torch's context parallel: exact results, torch's blocks, balanced shares."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from context_parallel_ranks import BLOCK, CASES, SPEC, TOKENS, dense_rows, sample_of
from torch.nn.attention.flex_attention import create_block_mask, create_mask, flex_attention

from dcp_dsl import Sample
from dcp_runtime import DCPLoadBalancer, RunError
from dcp_runtime.adapters.context_parallel import _Deal

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
    script = Path(__file__).with_name("context_parallel_ranks.py")
    assert start_ranks(4, script, tmp_path) == ["exact\n"] * 4


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
