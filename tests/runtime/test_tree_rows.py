"""Trees of rollouts: what they share and keep apart, what is refused, how they train."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from loader_options import ONE, SMALL, make_loader
from losses_model import WORDS, Model, attend_causally

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_planner import ModelShape, PlanConfig
from dcp_runtime import DCPAttn, DCPExecutor, LayerPlans, RunError, by_rollout, group_rows
from dcp_runtime.commands import trees as trees_command
from dcp_runtime.data.trees import write_trees


def agent_log(seed, rollouts=9, turns=4, longest=6, words=WORDS):
    """Draw rollouts of one task: retries, edits, calls of tools that branch, repeats and prefixes.

    Columns hold numbers that float32 holds exactly; rollouts differ in them also where they share
    tokens.
    """
    rng = np.random.default_rng(seed)
    found = []
    system = rng.integers(0, words, rng.integers(1, longest + 1)).tolist()
    for _ in range(rollouts):
        kind = rng.choice(["new", "retry", "edit", "repeat", "prefix"]) if found else "new"
        base = found[rng.integers(len(found))] if found else system
        cut = int(rng.integers(1, len(base) + 1))
        tokens = {"new": system, "repeat": base, "edit": base, "retry": base[:cut]}.get(
            kind, base[:cut]
        )
        if kind in ("new", "retry"):
            for _turn in range(int(rng.integers(1, turns))):
                tokens = tokens + rng.integers(0, words, rng.integers(1, longest)).tolist()
        elif kind == "edit":
            tokens = [*tokens]
            tokens[cut - 1] = int(rng.integers(0, words))
        found.append(tokens)
    return [row_of(rng, tokens, number) for number, tokens in enumerate(found)]


def row_of(rng, tokens, number):
    count = len(tokens)
    return {
        "tokens": tokens,
        "response_mask": rng.integers(0, 4, count).clip(0, 1).tolist(),
        "advantages": [float(rng.integers(-4, 5)) / 4] * count,
        "old": (-rng.integers(20, 40, count) / 8).tolist(),
        "reward": number / 2,
    }


def nodes_of_trie(rows):
    """Count the tokens of a trie, by hashing every prefix."""
    return len({tuple(row["tokens"][: n + 1]) for row in rows for n in range(len(row["tokens"]))})


def shares(rows):
    """Return for each token of each rollout how many rollouts count the same token as a target."""
    counted = {}
    for row in rows:
        for n in range(1, len(row["tokens"])):
            prefix = tuple(row["tokens"][: n + 1])
            counted[prefix] = counted.get(prefix, 0) + row["response_mask"][n]
    return [
        [0, *(counted[tuple(row["tokens"][: n + 1])] for n in range(1, len(row["tokens"])))]
        for row in rows
    ]


SPEC = Spec.from_text("mask tree = rollout_tree  mask plain = causal")
OPTIONS = {**SMALL, "token_budget": 256, "cluster": ONE, "rank": 0}
COLUMNS = ("advantages", "old")
RULES = {"loss_column": "response_mask", "extra_columns": COLUMNS, "shared_targets": "per_path"}


def loaded(trees, mask="tree", **options):
    return [data for data, _ in make_loader(trees, SPEC.mask(mask), **{**OPTIONS, **options})]


def check_rollouts(batches, rows, column="tokens", counted="response_mask"):
    """Every rollout gets its own ids, columns and log-probabilities at the tokens it counts."""
    seen = set()
    for data in batches:
        own = {"ids": data.target_ids.double(), **data.target_extra}
        found = {name: by_rollout(values.double(), data) for name, values in own.items()}
        for number in data.rollout_terms:
            row = rows[number]
            is_own = np.array(row[counted]) * (np.arange(len(row[column])) > 0)
            wanted = {"ids": row[column], **{name: row[name] for name in data.target_extra}}
            for name, values in wanted.items():
                got = found[name][number].numpy()
                assert got.tolist() == (np.array(values) * is_own).tolist()
            seen.add(number)
    assert seen == set(range(len(rows)))


@pytest.mark.parametrize("budget", [None, 24])
def test_every_rollout_keeps_its_own_columns(budget):
    for seed in range(20):
        rows = agent_log(seed, words=4)
        trees = group_rows(rows, token_budget=budget)
        assert max(len(row["tokens"]) for row in trees) <= (budget or 256)
        batches = loaded(trees, **RULES)
        check_rollouts(batches, rows)
        total = sum(sum(row["response_mask"][1:]) for row in rows)
        weights = sum(float(data.target_weights.sum()) for data in batches)
        assert weights == sum(data.num_targets for data in batches) == total
        rewards = {
            n: r for row in trees for n, r in zip(row["rollout_rows"], row["reward"], strict=True)
        }
        assert rewards == {number: row["reward"] for number, row in enumerate(rows)}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_file_of_trees_is_loaded_as_the_trees_are(tmp_path, suffix):
    rows = agent_log(5)
    given, out = tmp_path / "log.jsonl", tmp_path / f"trees.{suffix}"
    given.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [str(given), "--out", str(out), "--token-budget", "32", "--json"]
    done = CliRunner().invoke(trees_command, arguments, catch_exceptions=False)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["separate_tokens"] == sum(len(row["tokens"]) for row in rows)
    batches = loaded(read_dataset(out), **RULES)
    assert sum(len(data.tokens) for data in batches) == figures["tokens"]
    check_rollouts(batches, rows)
    said = CliRunner().invoke(trees_command, [str(given)]).stdout
    kept = nodes_of_trie(rows)
    assert f"{figures['separate_tokens']:,} separate, {kept:,} in trees" in said


def after_dropping(rows, min_gain, depth=0):
    """Return the tokens of each branch from a depth on, without forks that save too little."""
    if len(rows) == 1:
        return [len(rows[0]) - depth]
    end = depth
    while all(len(row) > end for row in rows) and len({row[end] for row in rows}) == 1:
        end += 1
    parts = {}
    for number, row in enumerate(rows):
        parts.setdefault(row[end] if len(row) > end else -1 - number, []).append(row)
    found = [each for part in parts.values() for each in after_dropping(part, min_gain, end)]
    if (end - depth) * (len(found) - 1) >= min_gain:
        return [end - depth + sum(found)]
    return [end - depth + each for each in found]


@pytest.mark.parametrize("min_gain", [2, 4, 9])
def test_a_fork_that_saves_too_little_is_left_out(min_gain):
    dropped = 0
    for seed in range(200):
        rows = agent_log(seed, rollouts=1 + seed % 12, words=4)
        trees = group_rows(rows, min_gain=min_gain)
        assert trees.tokens == sum(after_dropping([row["tokens"] for row in rows], min_gain))
        assert trees.tokens == sum(len(row["tokens"]) for row in trees)
        dropped += trees.tokens > nodes_of_trie(rows)
    assert dropped > 20
    check_rollouts(loaded(group_rows(agent_log(7), min_gain=min_gain), **RULES), agent_log(7))


def test_a_budget_keeps_the_longest_prefixes():
    rows = [{"tokens": tokens} for tokens in ([1, 2], [1, 5, 5, 5, 6], [1, 5, 5, 5, 7])]
    trees = group_rows(rows, token_budget=6)
    assert sorted(row["rollout_rows"].tolist() for row in trees) == [[0], [1, 2]]
    assert (trees.separate_tokens, trees.tokens, trees.pairs) == (12, 8, 3 + 15 + 5)


def test_rollouts_with_other_images_share_no_more_than_what_is_before():
    rows = [
        {"input_ids": [1, 9, 9, 2], "image": ["", "a", "a", ""]},
        {"input_ids": [1, 9, 9, 2], "image": ["", "b", "b", ""]},
        {"input_ids": [1, 9, 9, 3], "image": ["", "b", "b", ""]},
    ]
    assert group_rows(rows).tokens == 5
    (tree,) = trees = group_rows(rows, by=("input_ids", "image"))
    assert trees.tokens == 1 + 3 + 2 + 2
    assert tree["image"] == ["", "a", "a", "", *["", "b", "b", ""] * 2]
    check_rollouts(loaded(trees), [{**row, "all": [1] * 4} for row in rows], "input_ids", "all")


def test_rollouts_with_other_labels_of_a_shared_token_train_on_their_own():
    rows = [
        {"tokens": [1, 2, 3, 4], "labels": [-100, -100, 3, 4]},
        {"tokens": [1, 2, 3, 5], "labels": [-100, 7, 3, -100]},
        {"tokens": [1, 2, 3], "labels": [-100, 2, 3]},
    ]
    for rule, weights in (("per_path", [1, 1, 3, 1]), ("once", [0.5, 0.5, 1, 1])):
        (data,) = loaded(group_rows(rows), shared_targets=rule)
        assert data.target_ids.tolist() == [2, 7, 3, 4]
        assert data.target_weights.tolist() == weights
        assert data.num_targets == sum(weights)
        found = by_rollout(data.target_ids, data)
        assert [found[n].tolist() for n in range(3)] == [[0, 0, 3, 4], [0, 7, 3, 0], [0, 2, 3]]


def mixed_rows():
    """Return trees between rows that are none, and the rollouts of the trees."""
    rows = agent_log(2)
    columns = {"response_mask": [0, 1, 1], "advantages": [1.0] * 3, "old": [0.5] * 3}
    alone = {"tokens": [1, 2, 3], **columns, "branch_lens": [3], "branch_forks": [-1]}
    first, *trees = group_rows(rows, token_budget=24)
    return [alone, first, alone, *trees, alone], rows


def test_a_second_epoch_and_a_resumed_one_are_the_same():
    mixed, _ = mixed_rows()
    options = {**OPTIONS, **RULES, "token_budget": 24}
    loader = make_loader(mixed, SPEC.mask("tree"), **options)
    first = [data for data, _ in loader]
    second = [data for data, _ in loader]
    next(iter(loader))
    state = loader.state_dict()
    resumed = make_loader(mixed, SPEC.mask("tree"), **options)
    resumed.load_state_dict(state)
    rest = [data for data, _ in resumed]
    assert len(first) > len(rest) > 0
    for one, other in zip([*first, *first[-len(rest) :]], [*second, *rest], strict=True):
        assert one.rows == other.rows
        for name in ("tokens", "target_rows", "target_ids", "target_weights", "target_terms"):
            assert torch.equal(getattr(one, name), getattr(other, name))


def test_trees_may_lie_between_rows_that_are_none():
    mixed, rows = mixed_rows()
    (data,) = loaded(mixed, **RULES)
    check_rollouts([data], rows)
    of_rows = torch.bincount(data.sequence_ids[data.target_rows]).tolist()
    assert [of_rows[0], of_rows[2], of_rows[-1]] == [2, 2, 2]


def plain(count=2, **columns):
    return [{"tokens": [1, 2, n], **columns} for n in range(count)]


REFUSED = {
    "no tokens": ([*plain(), {"tokens": []}], {}, "row 2 has no tokens; leave", (plain(), {}), 4),
    "beyond the budget": (
        plain(), {"token_budget": 2}, "row 0 has 3 tokens, the token budget is 2", (plain(), {}), 4,
    ),
    "other columns": (
        [*plain(), {"tokens": [4], "x": 1}], {}, "row 2: expected the columns of row 0.*`x`",
        ([{**row, "x": 1} for row in [*plain(), {"tokens": [4]}]], {}), 5,
    ),
    "trees already": (
        [{"tokens": [1], "branch_lens": [1]}], {}, "row 0 has the column `branch_lens`",
        ([{"tokens": [1], "lens": [1]}], {}), 1,
    ),
    "no value for every token": (
        plain(image=["a"]), {"by": ("tokens", "image")}, "expected 3 values, one per token, got 1",
        (plain(image=["a", 0, 0]), {"by": ("tokens", "image")}), 4,
    ),
    "two columns of tokens": (
        plain(ids=[1, 2, 3]), {"by": "ids"}, "row 0 has a column `tokens` as well",
        ([{"ids": row["tokens"]} for row in plain()], {"by": "ids"}), 4,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_rollouts_that_cannot_be_grouped_are_refused_with_a_way_out(name):
    rows, options, message, (mended, mended_options), kept = REFUSED[name]
    with pytest.raises(DatasetError, match=message):
        group_rows(rows, **options)
    assert group_rows(mended, **mended_options).tokens == kept


@pytest.mark.parametrize("options", [{"min_gain": 0}, {"token_budget": 0}, {"by": ()}])
def test_choices_out_of_range_are_refused(options):
    with pytest.raises(RunError, match="group_rows: expected"):
        group_rows(plain(), **options)


def test_a_fork_in_the_middle_needs_no_branch_of_its_own():
    """As many branches as different rollouts that no other one continues."""
    for seed in range(100):
        rows = agent_log(seed, rollouts=1 + seed % 12, words=4)
        ends = {tuple(row["tokens"]) for row in rows}
        leaves = [a for a in ends if not any(a != b and b[: len(a)] == a for b in ends)]
        trees = group_rows(rows)
        assert sum(len(row["branch_lens"]) for row in trees) == len(leaves)
        for row in trees:
            assert row["branch_forks"].tolist()[0] == -1
            assert all(fork >= 0 for fork in row["branch_forks"].tolist()[1:])


def test_no_rollouts_are_no_trees():
    assert (len(group_rows([])), group_rows([]).figures()["tokens"]) == (0, 0)


def test_a_mask_that_does_not_read_the_tree_is_refused_and_rollout_tree_reads_it():
    trees = group_rows(plain())
    with pytest.raises(DatasetError, match="expected token 3 of the tree to continue token 1"):
        loaded(trees, mask="plain")
    (data,) = loaded(trees)
    assert data.position_ids.tolist() == [0, 1, 2, 2]


def test_a_mask_of_the_loss_that_nothing_reads_is_refused_in_trees_too():
    rows = plain(loss_mask=[0, 1, 0])
    with pytest.raises(RunError, match="rollout 0: column `loss_mask`"):
        loaded(group_rows(rows))
    (data,) = loaded(group_rows(rows), loss_column="loss_mask")
    assert data.target_ids.tolist() == [2]


def test_rollouts_that_place_a_shared_token_elsewhere_are_refused_or_kept_apart():
    rows = [{"tokens": [1, 2, 3], "position_ids": [0, 1, n]} for n in (2, 7)]
    options = {"position_column": "position_ids"}
    with pytest.raises(DatasetError, match=r"share token 2 .* positions 2 and 7; name the column"):
        loaded(group_rows(rows), **options)
    (data,) = loaded(group_rows(rows, by=("tokens", "position_ids")), **options)
    assert data.position_ids.tolist() == [0, 1, 2, 7]


CONTRADICTIONS = {
    "a token that is not there": (
        {"rollout_ends": [9, 1]}, "rollout 0: expected the last token .* 0 to 3, got 9"
    ),
    "a token of no path": ({"branch_forks": [-1, 3]}, "branch 1 goes on from token 3"),
    "a branch without tokens": (
        {"branch_lens": [3, 1, 0], "branch_forks": [-1, 1, 2]}, "no tree of the 4 tokens"
    ),
    "one number less": ({"rollout_rows": [0]}, r"one value for each rollout .* \[2, 2, 2, 1\]"),
    "numbers that are texts": ({"rollout_rows": ["a", "b"]}, "integers in `rollout_rows`, got"),
    "one column less": ({"rollout_rows": None}, "integers in `rollout_rows`, got None"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_trees_whose_columns_contradict_each_other_are_refused(name):
    change, message = CONTRADICTIONS[name]
    (tree,) = group_rows(plain())
    with pytest.raises(DatasetError, match=message):
        loaded([{**tree, **change}])


def test_values_that_are_not_one_per_target_are_refused():
    (data,) = loaded(group_rows(plain()))
    with pytest.raises(RunError, match=r"expected values \[3\]"):
        by_rollout(torch.zeros(2), data)
    (data,) = loaded(plain(), mask="plain")
    with pytest.raises(RunError, match="give the loader the rows of group_rows"):
        by_rollout(torch.zeros(4), data)


def test_a_file_of_another_kind_or_with_values_beyond_json_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"ends in .parquet or .jsonl"):
        write_trees(tmp_path / "a.csv", group_rows(plain()))
    with pytest.raises(DatasetError, match=r"write .parquet, or leave"):
        write_trees(tmp_path / "a.jsonl", group_rows(plain(x={1})))
    assert list(tmp_path.iterdir()) == []


CASES = {
    "per_path": {"shared_targets": "per_path"},
    "once": {"shared_targets": "once"},
    "sequence": {"shared_targets": "per_path"},
    "budget": {"shared_targets": "per_path", "token_budget": 24, "micro_batches": 2},
}


def policy_terms(log_probs, advantages, old):
    """Return the clipped objective of each target."""
    ratio = (log_probs - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)


def of_sequences(log_probs, columns):
    """Return the mean over rollouts of a ratio for each whole rollout, clipped."""
    terms = []
    for number, own in log_probs.items():
        advantage, ratio = columns[number]["advantages"][0], (own.sum() / 50).exp()
        terms.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
    return torch.stack(terms).mean()


def trained(name, executor):
    options = {"token_budget": 256, **CASES[name]}
    rows = agent_log(3)
    trees = group_rows(rows, token_budget=options["token_budget"])
    loader = make_loader(
        trees, SPEC.mask("tree"), shape=ModelShape(2, 2, 8, 8), block_size=4,
        config=PlanConfig("static:zigzag"), loss_column="response_mask",
        extra_columns=("advantages", "old"), **options,
    )  # fmt: skip
    model, total, found = Model(), torch.zeros((), dtype=torch.float64), {}
    for data, plan in loader:
        layers = LayerPlans.prepare(executor, plan)
        logits, _, _ = model(
            data.tokens, data.position_ids,
            lambda n, q, kv, own=layers: DCPAttn.apply(own.of(n), q, kv),
        )  # fmt: skip
        log_probs = logits.log_softmax(-1)[data.target_rows, data.target_ids]
        terms = policy_terms(log_probs, data.target_extra["advantages"], data.target_extra["old"])
        loss = (terms * data.target_weights).sum() / data.num_targets
        if name == "sequence":
            loss = of_sequences(by_rollout(log_probs, data), rows) / dist.get_world_size()
        loss.backward()
        total += loss.detach()
        found |= {number: own.detach() for number, own in by_rollout(log_probs, data).items()}
    dist.all_reduce(total)
    for weight in model.parameters():
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.all_reduce(weight.grad)
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    return {"loss": total, "gradients": gradients, "log_probs": found, "trees": len(trees)}


def main():
    """Be one rank: ``test_tree_rows.py OUT`` saves losses and summed gradients."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with DCPExecutor() as executor:
        found = {name: trained(name, executor) for name in CASES}
    torch.save(found, Path(sys.argv[1]) / f"found-{dist.get_rank()}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory, start_ranks):
    saved = {}
    for ranks in (1, 4):
        folder = tmp_path_factory.mktemp("trees")
        start_ranks(ranks, Path(__file__), folder, folder)
        saved[ranks] = [torch.load(folder / f"found-{rank}.pt") for rank in range(ranks)]
    return saved


def separate(model, rows, *, once):
    """Return the loss and the log-probabilities of rollouts that are run one by one."""
    total, targets, log_probs = 0.0, 0.0, {}
    for number, (row, share) in enumerate(zip(rows, shares(rows), strict=True)):
        tokens = torch.tensor(row["tokens"])
        places = torch.arange(len(tokens))
        logits, _, _ = model(tokens, places, attend_causally([len(tokens)]))
        own = logits[:-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
        counted = torch.tensor(row["response_mask"])[1:]
        weights = counted.double()
        if once:  # a weight is a float32
            weights = torch.where(counted > 0, 1 / torch.tensor(share[1:]), 0.0).double()
            targets += sum(1 / n for n, is_own in zip(share[1:], counted, strict=True) if is_own)
        else:
            targets += int(counted.sum())
        columns = (
            torch.tensor(row[name], dtype=torch.float64)[1:] for name in ("advantages", "old")
        )
        total = total + (policy_terms(own, *columns) * weights).sum()
        log_probs[number] = torch.cat([torch.zeros(1).double(), own * counted])
    return total / round(targets), log_probs


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("name", CASES)
def test_trees_train_as_separate_rollouts_do(found, name, ranks):
    model, rows = Model(), agent_log(3)
    loss, log_probs = separate(model, rows, once=name == "once")
    if name == "sequence":
        loss = of_sequences(log_probs, rows)
    loss.backward()
    for rank in found[ranks]:
        assert (rank[name]["trees"] > 1) == (name == "budget")
        assert float(rank[name]["loss"]) == pytest.approx(loss.item(), rel=1e-12)
        for weight_name, weight in model.named_parameters():
            wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
            got = rank[name]["gradients"][weight_name]
            torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14, msg=weight_name)
        assert rank[name]["log_probs"].keys() == log_probs.keys()
        for number, wanted in log_probs.items():
            got = rank[name]["log_probs"][number]
            torch.testing.assert_close(got, wanted.detach(), rtol=1e-12, atol=1e-14)


def test_trees_hold_as_few_tokens_as_a_trie():
    for seed in range(1000):
        rows = agent_log(seed, rollouts=1 + seed % 12, words=4)
        trees = group_rows(rows)
        assert trees.tokens == sum(len(row["tokens"]) for row in trees) == nodes_of_trie(rows)


if __name__ == "__main__":
    main()
