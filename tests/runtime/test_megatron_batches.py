"""Packed batches of Megatron-Core's data loaders are cut by plans as a plain loop cuts them."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import Planning, RunError
from dcp_runtime.adapters.megatron import PlannedBatches
from dcp_runtime.plans.batch_plans import StackedPlans

SPEC = Spec.from_text(
    "segment s = head[head] tail[tail]\nmask plain = causal\nmask split = causal and k in head\n"
)
RANKS = 2


class OneRank:
    """Stands for the executor of a rank: keeps the plans that it is to make ready."""

    def __init__(self, rank):
        self.rank = rank

    def prepare_stack(self, stack: StackedPlans):
        self.plan = stack.plans[0]
        return (SimpleNamespace(),)


def split(batch, *ends, columns=None, mask="plain"):
    """What every rank gets: entries of the batch, and the positions of its layers."""
    planning = Planning(
        ModelShape(2, 2, 8, 4), Cluster(1, RANKS), PlanConfig("static:zigzag"), block_size=4
    )
    found = []
    for rank in range(RANKS):
        executor = OneRank(rank)
        cut, sequences = PlannedBatches(executor, SPEC.mask(mask), planning).split(
            batch, *(None if end is None else torch.as_tensor(end) for end in ends), columns=columns
        )
        assert len(sequences.position_ids) == len(executor.plan.local_tokens(rank))
        found.append((cut, sequences))
    return found


@st.composite
def packed(draw):
    """A batch with its ends, and its sequences cut by a loop: (token, position) of each token."""
    lengths = draw(st.lists(st.integers(0, 13), min_size=1, max_size=6).filter(any))
    rooms = [n + draw(st.integers(0, 5)) for n in lengths]
    is_padded = draw(st.booleans())
    rooms = rooms if is_padded else lengths
    behind = draw(st.integers(0, 4)) if is_padded else 0
    real, padded, tokens, cut = [0], [0], [], []
    for n, room in zip(lengths, rooms, strict=True):
        for position in range(room):
            if position < n:
                cut.append((len(tokens), position))
            tokens.append(len(tokens))
        real.append(real[-1] + n)
        padded.append(padded[-1] + room)
    tokens += range(len(tokens), len(tokens) + behind)
    ends = [real, padded] if is_padded else [real]
    for each in ends:
        kind = draw(st.sampled_from(["as it is", "minus one", "last"]))
        filler = each[-1] if kind == "last" else -1
        each += [filler] * draw(st.integers(0, 3)) if kind != "as it is" else []
    if draw(st.booleans()):
        ends = [[each] for each in ends]
    return torch.tensor([tokens]), ends, cut


@settings(max_examples=25, deadline=None)
@given(packed())
def test_every_token_without_padding_is_on_one_rank(drawn):
    tokens, ends, cut = drawn
    batch = {
        "tokens": tokens, "labels": tokens + 1, "two": torch.stack([tokens, -tokens], -1),
        "loss_mask": None, "attention_mask": torch.zeros(1), "max_seqlen": 7,
        "cu_seqlens": ends[0], "hybrid_cp_group": None,
    }  # fmt: skip
    found = []
    for mine, sequences in split(batch, *ends):
        own, positions = mine["tokens"][0].tolist(), sequences.position_ids.tolist()
        found += zip(own, positions, strict=True)
        assert torch.equal(mine["labels"], mine["tokens"] + 1)
        assert torch.equal(mine["two"][..., 1], -mine["tokens"])
        assert torch.equal(mine["position_ids"][0], sequences.position_ids)
        assert mine["attention_mask"] is mine["loss_mask"] is mine["hybrid_cp_group"] is None
        assert (mine["max_seqlen"], mine["cu_seqlens"]) == (7, ends[0])
        assert sequences.longest == max(positions, default=-1) + 1
    assert sorted(found) == cut


def test_positions_of_the_batch_and_columns_of_sequences_are_taken():
    tokens = torch.arange(9)[None]
    columns = [{"head": 2, "tail": 3}, {"head": 4, "tail": 0}]
    batch = {"tokens": tokens, "position_ids": 100 + tokens}
    cut = split(batch, [0, 5, 9, 9, 9], columns=columns, mask="split")
    found = torch.cat([sequences.position_ids for _, sequences in cut])
    assert sorted(found.tolist()) == list(range(100, 109))
    cut = split({"tokens": None, "labels": None}, [0, 5, 9])  # a stage in the middle of a pipeline
    assert sum(len(sequences.position_ids) for _, sequences in cut) == 9
    assert all(mine["tokens"] is None for mine, _ in cut)


TOKENS = {"tokens": torch.zeros(1, 9)}


@pytest.mark.parametrize(
    ("batch", "ends", "said"),
    [
        (TOKENS, [[]], r"cu_seqlens: expected integers .* got torch.float32 .0.; flatten"),
        (TOKENS, [torch.zeros(0, dtype=torch.int32)], "expected ends that begin with 0, got none"),
        (TOKENS, [[-1, -1]], "expected ends that begin with 0, got .-1, -1.; the first sequence"),
        (TOKENS, [[0]], "expected a sequence with tokens, got 0 without any; leave such a batch"),
        (TOKENS, [[0, 0]], "expected a sequence with tokens, got 1 without any"),
        (TOKENS, [[[0, 5], [0, 9]]], r"expected integers .* got torch.int64 .2, 2.; flatten"),
        (TOKENS, [[0.0, 9.0]], "expected integers"),
        (TOKENS, [[2, 9]], "expected ends that begin with 0, got .2, 9."),
        (TOKENS, [[0, 7, 5, 9]], "do not fall, got 7 and then 5, at place 2; only the end"),
        (TOKENS, [[0, 5, -1, 9]], "do not fall, got 5 and then -1, at place 2"),
        (TOKENS, [[0, 5, 12]], "cu_seqlens: expected ends up to 9, .* got 12; give the ends of"),
        (TOKENS, [[0, 5, 7], [0, 6, 12]], "cu_seqlens_padded: expected ends up to 9, .* got 12"),
        (TOKENS, [[0, 5, 7]], "expected 9 as the last end, .* got 7: 2 tokens are in no sequence"),
        (TOKENS, [[0, 5, 8], [0, 4, 9]], "room for the 5 tokens of sequence 0, got 4; the padded"),
        (TOKENS, [[0, 5, 8], [0, 8]], "as many sequences as in cu_seqlens, 2, got 1; both"),
        (TOKENS, [[0, 8], [0, 8, 9]], "as many sequences as in cu_seqlens, 1, got 2"),
        (TOKENS, [[0, 8], [1, 9]], "cu_seqlens_padded: expected ends that begin with 0"),
        (
            TOKENS | {"labels": torch.zeros(1, 7)}, [[0, 9]],
            r"batch..labels..: expected 9 tokens, as in batch..tokens.., got 7; leave out",
        ),
        (
            TOKENS | {"labels": torch.zeros(2, 9)}, [[0, 9]],
            r"batch..labels..: expected a tensor .1, T, ....* got .2, 9.; give it",
        ),
        (TOKENS | {"seed": 7}, [[0, 9]], r"batch..seed..: expected a tensor .* got int"),
        (TOKENS | {"seed": torch.tensor(7)}, [[0, 9]], r"batch..seed..: expected a tensor .* got"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(batch, ends, said):
    with pytest.raises(RunError, match=said):
        split(batch, *ends)


def test_the_ways_out_that_are_named():
    assert len(split(TOKENS, [0, 5, 7], [0, 5, 7])) == RANKS  # tokens behind are padding
    flat = {"tokens": torch.arange(18).reshape(2, 9).reshape(1, -1)}
    assert len(split(flat, [0, 9, 14, 18])) == RANKS  # two samples, with their ends
    with pytest.raises(
        RunError, match="columns: expected those of each of 2 sequences, got 1; give"
    ):
        split(TOKENS, [0, 5, 9, 9], columns=[{"head": 5, "tail": 0}], mask="split")
