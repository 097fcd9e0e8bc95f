"""A batch of prompts with several answers, packed, trains as its separate sequences do."""

import json

import numpy as np
import pytest
import torch
from loader_options import ONE, SMALL, make_loader
from torch import nn
from torch.nn import functional

from dcp_dsl import Sample, Spec, dense_mask, read_dataset, token_paths
from dcp_planner import Cluster
from dcp_runtime import next_token_loss

GRPO = Spec.from_text("""
segment grp = branch group(prompt[prompt_lens] branch rollout[rollout_lens]*)*
mask own = paths
mask near = paths and q.path - k.path < 4
stack layers = own, near
""")
PLAIN = Spec.from_text("mask own = causal  mask near = sliding(4)  stack layers = own, near")
TREE = Spec.from_text("segment t = branch node[lens]* from parents  mask own = paths")
OPTIONS = {**SMALL, "token_budget": 256, "cluster": ONE, "rank": 0}
VOCABULARY, WIDTH = 19, 8


class Model(nn.Module):
    """Two layers of attention under given masks, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH, dtype=torch.float64)
        self.positions = nn.Embedding(64, WIDTH, dtype=torch.float64)
        self.layers = nn.ModuleList(
            nn.Linear(WIDTH, 3 * WIDTH, dtype=torch.float64) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, dtype=torch.float64)

    def forward(self, data, masks):
        x = self.tokens(data.tokens) + self.positions(data.position_ids)
        for layer, mask in zip(self.layers, masks, strict=True):
            q, k, v = layer(x).chunk(3, -1)
            x = x + functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.head(x)


def batch_of(rows, spec, **options):
    ((data, _),) = make_loader(rows, spec.stack("layers"), **{**OPTIONS, **options})
    return data


def masks_of(rows, spec):
    """Return the masks of a batch: those of its rows along the diagonal."""
    stack, found = spec.stack("layers"), []
    for mask in stack.masks:
        own = [
            dense_mask(mask, Sample.of({**row, "len": len(row["tokens"])}, mask)) for row in rows
        ]
        found.append(torch.block_diag(*(torch.from_numpy(each).int() for each in own)).bool())
    return found


def trained(rows, spec, loss_of, **options):
    model = Model()
    data = batch_of(rows, spec, **options)
    assert data.sequence_ids.tolist() == [i for i, row in enumerate(rows) for _ in row["tokens"]]
    loss = loss_of(model(data, masks_of(rows, spec)), data)
    loss.backward()
    return loss.detach(), {name: each.grad for name, each in model.named_parameters()}


def a_group(seed):
    """Draw two groups: their packed row, and the rows of their separate sequences."""
    rng = np.random.default_rng(seed)
    prompts, rollouts = [5, 3], [[4, 6, 3], [2, 5]]
    total = sum(prompts) + sum(map(sum, rollouts))
    packed = {
        "tokens": rng.integers(0, VOCABULARY, total).tolist(), "prompt_lens": prompts,
        "rollout_lens": rollouts, "advantages": rng.normal(size=total).round(3).tolist(),
    }  # fmt: skip
    separate, at = [], 0
    for prompt, answers in zip(prompts, rollouts, strict=True):
        begin, at = list(range(at, at + prompt)), at + prompt
        for answer in answers:
            path, at = [*begin, *range(at, at + answer)], at + answer
            separate.append({c: [packed[c][i] for i in path] for c in ("tokens", "advantages")})
    return packed, separate


def policy_loss(logits, data):
    log_probs = logits.log_softmax(-1)[data.target_rows, data.target_ids]
    terms = data.target_extra["advantages"].double() * data.target_weights.double() * log_probs
    return -terms.sum() / data.num_targets


def assert_same(one, other):
    torch.testing.assert_close(one[0], other[0], rtol=1e-12, atol=1e-12)
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss_of", [next_token_loss, policy_loss])
def test_a_packed_group_has_the_loss_and_gradients_of_its_separate_sequences(loss_of):
    packed, separate = a_group(1)
    options = {"extra_columns": ("advantages",), "shared_targets": "per_path"}
    whole = trained([packed], GRPO, loss_of, **options)
    parts = trained(separate, PLAIN, loss_of, **options)
    assert_same(whole, parts)


def test_shared_targets_count_once_unless_said_otherwise():
    packed, separate = a_group(2)
    options = {"extra_columns": ("advantages",)}
    once = batch_of([packed], GRPO, **options)
    assert once.num_targets == len(once.target_ids) == len(packed["tokens"]) - 2
    assert set(once.target_weights.tolist()) == {1.0}
    each = batch_of([packed], GRPO, shared_targets="per_path", **options)
    assert each.num_targets == sum(len(row["tokens"]) - 1 for row in separate)
    assert sorted(set(each.target_weights.tolist())) == [1.0, 2.0, 3.0]


def test_a_prompt_is_labelled_with_an_answer_that_counts():
    packed, _ = a_group(3)
    labels = [-100 if at == 5 else token for at, token in enumerate(packed["tokens"])]
    data = batch_of([{**packed, "labels": labels}], GRPO)
    predicted = data.target_ids[data.target_rows == 4].tolist()
    assert predicted == [labels[9], labels[15]]
    assert data.labels[4] in predicted


def test_targets_of_a_tree_on_several_ranks_are_those_of_one():
    row = {"tokens": list(range(12)), "lens": [3, 4, 2, 3], "parents": [-1, 0, 0, 1]}
    mask = TREE.mask("own")
    paths = token_paths(mask, Sample({"lens": row["lens"], "parents": row["parents"]}, 12))
    pairs = set()
    for rank in range(3):
        options = {**OPTIONS, "cluster": Cluster(devices_per_node=3), "rank": rank, "block_size": 2}
        ((data, plan),) = make_loader([row], mask, **options)
        local = plan.local_tokens(rank)
        assert data.num_targets == 11
        sources = local[data.target_rows.numpy()].tolist()
        pairs |= set(zip(sources, data.target_ids.tolist(), strict=True))
        assert data.position_ids.tolist() == paths.position[local].tolist()
    assert pairs == {(int(p), t) for t, p in enumerate(paths.previous) if p >= 0}


@pytest.mark.filterwarnings("ignore:.* are seen by the token that predicts them")
@pytest.mark.parametrize(
    ("call", "columns", "previous"),  # of each token the one that predicts it; -1: none
    [
        ("shared_question", {"question_len": 2, "answer_lens": [2, 3]}, [-1, 0, 1, 2, 1, 4, 5]),
        ("shared_prefix", {"prefix_len": 2, "chat_lens": [2, 3]}, [-1, 0, 1, 2, 1, 4, 5]),
        ("dpo", {"prompt_len": 3, "chosen_len": 2, "rejected_len": 2}, [-1, 0, 1, 2, 3, 2, 5]),
        ("grpo", {"prompt_lens": [2, 1], "rollout_lens": [[1, 1], [2]]}, [-1, 0, 1, 1, -1, 4, 5]),
        ("document", {"doc_lens": [3, 4]}, [-1, 0, 1, -1, 3, 4, 5]),
        ("document_full", {"doc_lens": [3, 4]}, [-1, 0, 1, -1, 3, 4, 5]),
        ("document_streaming", {"doc_lens": [3, 4]}, [-1, 0, 1, -1, 3, 4, 5]),
        ("prefix_lm_packed", {"prefix_lens": [1, 2], "body_lens": [2, 2]},
         [-1, 0, 1, -1, 3, 4, 5]),
        ("block_causal", {"chunk_lens": [[1, 2], [4]]}, [-1, 0, 1, -1, 3, 4, 5]),
    ],
)  # fmt: skip
def test_a_library_mask_trains_a_row_as_its_separate_sequences_without_being_told(
    call, columns, previous
):
    row = {"tokens": list(range(100, 107)), **columns}
    ((data, _),) = make_loader([row], Spec.from_text("").mask(call), **OPTIONS)
    found = dict(zip(data.target_ids.tolist(), data.target_rows.tolist(), strict=True))
    assert found == {100 + at: before for at, before in enumerate(previous) if before >= 0}
    positions = []
    for before in previous:
        positions.append(0 if before < 0 else positions[before] + 1)
    assert data.position_ids.tolist() == positions


def test_a_joined_part_stands_behind_the_longest_branch_and_nothing_predicts_its_first_token():
    row = {"tokens": list(range(100, 109)), "window_lens": [3, 2]}
    pairs, mask = {}, Spec.from_text("").mask("parallel_context")
    for rank in range(2):
        options = {**OPTIONS, "cluster": Cluster(devices_per_node=2), "rank": rank, "block_size": 2}
        ((data, plan),) = make_loader([row], mask, **options)
        local = plan.local_tokens(rank)
        assert data.position_ids.tolist() == [[0, 1, 2, 0, 1, 3, 4, 5, 6][at] for at in local]
        pairs |= dict(
            zip(data.target_ids.tolist(), local[data.target_rows.numpy()].tolist(), strict=True)
        )
    assert pairs == {101: 0, 102: 1, 104: 3, 106: 5, 107: 6, 108: 7}


def test_columns_that_rows_lack_train_as_if_they_were_written_out(tmp_path):
    spec = Spec.from_text(
        "segment doc = [doc_lens]*  token hidden\n"
        "mask m = causal and same(doc) and q - k < row.reach and (q == k or k.hidden == 0)\n"
        'for "*" use m with reach = most or 2, hidden or 0'
    )
    lacking = [{"tokens": [1, 2, 3, 4], "doc_lens": [3, 1]},
               {"tokens": [5, 6, 7], "doc_lens": [3], "most": 1, "hidden": [0, 1, 0]}]  # fmt: skip
    whole = [{"most": 2, "hidden": [0] * 4, **row} for row in lacking]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in lacking))
    options = {**OPTIONS, "hidden_targets": "leave_out"}
    for rows in (lacking, read_dataset(path)):
        ((data, plan),) = make_loader(rows, spec, **options)
        ((other, wanted),) = make_loader(whole, spec, **options)
        tile = 0, 7, 0, 7
        assert np.array_equal(plan.mask_tile(*tile), wanted.mask_tile(*tile))
        assert data.tokens.tolist() == other.tokens.tolist()


def test_a_row_is_cut_with_its_branches():
    row = {"tokens": list(range(12)), "lens": [3, 4, 2, 3], "parents": [-1, 0, 0, 1]}
    options = {**OPTIONS, "token_budget": 8, "policy": "truncate"}
    ((data, _),) = make_loader([row], TREE.mask("own"), **options)
    assert data.target_rows.tolist() == [0, 1, 2, 2, 3, 4, 5]
    assert data.target_ids.tolist() == [1, 2, 3, 7, 4, 5, 6]
