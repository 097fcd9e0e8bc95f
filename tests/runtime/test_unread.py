"""Columns of other tools that nothing reads: found by name and by what they hold, and no others."""

import numpy as np
import pytest
import torch
from loader_options import (
    PACKERS,
    SAY_NOTHING,
    ends,
    joined,
    lengths,
    numbers,
    positions,
    separate,
    trained,
)

from dcp_dsl import Sample, Spec, token_paths
from dcp_runtime import RowRules, RunError
from dcp_runtime.data.unread import ReadRow, UnreadColumns

DOCUMENTS = [[10, 11, 12], [20, 21], [30]]
TOKENS = joined(DOCUMENTS)
COLUMNS = {
    f"{tool}: {name}": (name, value)
    for tool, columns in PACKERS.items()
    for name, value in columns(DOCUMENTS).items()
    if name not in SAY_NOTHING and not (tool == "verl" and name == "attention_mask")
}
ALONE = [{"input_ids": TOKENS, **columns([TOKENS])} for columns in PACKERS.values()]


@pytest.mark.parametrize("title", COLUMNS)
def test_every_column_of_a_packer_is_refused_by_its_name(title):
    name, value = COLUMNS[title]
    alone = {"input_ids": [1, 2]}
    for form in (value, np.array(value), torch.tensor(value)):
        row = {"input_ids": TOKENS, name: form}
        for policy in ("error", "skip"):  # skipping would leave out every row
            says = rf"^row 1: column `{name}` states 3 documents, and nothing reads it: by its name"
            with pytest.raises(RunError, match=says):
                trained([alone, row], policy=policy)


def test_one_border_states_two_documents():
    for name, value in (("sequence_boundaries", [3]), ("seq_starts", [0, 3]), ("doc_ends", [3, 6])):
        with pytest.raises(RunError, match=f"column `{name}` states 2 documents"):
            trained([{"input_ids": TOKENS, name: value}])


def test_columns_that_are_named_unchecked_or_extra_change_nothing():
    rows = [{"input_ids": TOKENS, name: value} for name, value in COLUMNS.values()]
    one = separate([TOKENS] * len(rows))
    options = {"token_budget": 1024, "unchecked_columns": [name for name, _ in COLUMNS.values()]}
    assert trained(rows, **options) == one
    row = {"input_ids": TOKENS, "segment_ids": numbers(DOCUMENTS)}
    assert trained([row], extra_columns=("segment_ids",)) == separate([TOKENS])


def test_rows_of_one_document_say_nothing():
    assert trained(ALONE, token_budget=1024) == separate([TOKENS] * len(ALONE))


def test_values_that_state_nothing_else_are_passed():
    harmless = [
        {"position_ids": [5, 6, 7, 8]}, {"position_ids": [0, 1]}, {"seq_lens": [4]},
        {"seq_start_id": [0]}, {"doc_ends": [4]},
        {"seq_lens": [9, 9]}, {"seq_lens": [3]}, {"cu_seqlens": [0, 4]}, {"doc_ids": [3] * 4},
        {"doc_ids": ["a", "b"]}, {"doc_ids": [17, 4]}, {"document_ids": "a"}, {"seq_lens": None},
        {"seq_lens": [[1], [1, 2]]}, {"cu_seqlens": []}, {"seq_len": 4}, {"document_id": 3},
        {"positions": [[0, 1], [2, 3]]}, {"attention_mask": [[1] * 4] * 4}, {7: [1, 1, 2, 2]},
        {"seq_lens": ["a" * 99] * 9}, {"position_ids": {"a": 1}},
    ]  # fmt: skip
    rows = [{"input_ids": [1, 2, 3, 4], **columns} for columns in harmless]
    assert trained(rows, token_budget=1024) == separate([[1, 2, 3, 4]] * len(rows))


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([0, 5, 6, 7], "expected position 5 at token 1, got 1; RowRules.position_column='position"),
        (
            [[0, 1, 2, 3], [0, 1, 1, 2], [0, 1, 2, 3]],
            "expected position 1 at token 2, got 2; .*ext",
        ),
    ],
)
def test_other_positions_of_one_document_are_refused(value, says):
    row = {"input_ids": [1, 2, 3, 4], "position_ids": value}
    with pytest.raises(RunError, match=f"column `position_ids` holds other positions, .*{says}"):
        trained([row])
    assert trained([row], unchecked_columns=["position_ids"])[1] == [0, 1, 2, 3]


READ = {
    "the column itself": ("segment d = ids(document_ids)  mask docs = causal per d", {}),
    "lengths": ("segment d = [lens]*  mask docs = causal per d", {"lens": [3, 2, 1]}),
    "lengths with branches": ("segment d = branch [lens]*  mask docs = paths", {"lens": [3, 2, 1]}),
    "finer parts": ("segment d = [lens]*  mask docs = causal per d", {"lens": [1, 2, 2, 1]}),
    "numbers": (
        "segment d = ids(own)  mask docs = causal per d", {"own": np.array(numbers(DOCUMENTS))},
    ),
    "parts of a layout, in another order": (
        "segment d = head[n] other[lens]*  mask docs = causal and (same(d) or q == k)",
        {"n": 3, "lens": [2, 1]},
    ),
    "groups of parts": (
        "segment d = group(a[a_lens]* b[b_lens]*)*  mask docs = causal per group",
        {"a_lens": [[1], [1], []], "b_lens": [[2], [1], [1]]},
    ),
    "groups of parts with branches": (
        "segment d = branch group(a[a_lens]* b[b_lens]*)*  mask docs = paths",
        {"a_lens": [[1], [1], []], "b_lens": [[2], [1], [1]]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", READ)
def test_a_mask_that_reads_the_same_borders_reads_the_column(title):
    text, columns = READ[title]
    row = {
        "input_ids": TOKENS,
        "document_ids": numbers(DOCUMENTS),
        "seq_lens": [3, 2, 1],
        **columns,
    }
    tokens, places, targets = trained([row], text, hidden_targets="leave_out")
    has_branches = "branch" in text
    assert (tokens, places) == separate(DOCUMENTS, counts_on=not has_branches)[:2]
    if title != "finer parts":
        assert targets == separate(DOCUMENTS)[2]
    other = {**row, "seq_lens": [2, 2, 2]}
    if title not in ("finer parts", "groups of parts"):
        with pytest.raises(RunError, match=r"`seq_lens` states 3 documents, .* that reads `"):
            trained([other], text)


def test_a_layout_with_branches_is_checked_too():
    text = "segment part = question[n] branch answer[lens]*  mask docs = paths"
    row = {"input_ids": TOKENS, "n": 2, "lens": [2, 2]}
    paths = token_paths(Spec.from_text(text).mask("docs"), Sample({"n": 2, "lens": [2, 2]}, 6))
    at = paths.position.tolist()
    harmless = [
        {"position_ids": at}, {"position_ids": [0, 1, 2, 3, 4, 5]}, {"seq_lens": [6]},
        {"doc_lens": [2, 2, 2]},
    ]  # fmt: skip
    assert trained([{**row, **columns} for columns in harmless], text)[1] == at * 4
    for name, value in (("seq_lens", [3, 3]), ("segment_ids", [1, 1, 1, 2, 2, 2])):
        with pytest.raises(RunError, match=f"column `{name}` states 2 documents"):
            trained([{**row, name: value}], text)
    with pytest.raises(RunError, match="column `position_ids` states 2 documents"):
        trained([{**row, "position_ids": [0, 1, 2, 0, 1, 2]}], text)
    with pytest.raises(RunError, match="column `loss_mask` leaves out 2 of 6 tokens"):
        trained([{**row, "loss_mask": [0, 0, 1, 1, 1, 1]}], text)


def test_positions_that_are_read_and_begin_anew_need_a_mask_that_reads_where():
    row = {"input_ids": TOKENS, "at": positions(DOCUMENTS)}
    says = (
        r"column `at` states 3 documents, and the mask does not read them: it holds positions that "
        r"begin anew at token 3; .*`segment doc = positions\(at\)`"
    )
    for policy in ("error", "skip"):
        with pytest.raises(RunError, match=says):
            trained([row], position_column="at", policy=policy)
    one = separate([TOKENS])
    kept = trained([row], position_column="at", unchecked_columns=("at",))
    assert kept == (TOKENS, positions(DOCUMENTS), one[2])
    # Positions that do more than count on and begin anew, and padding, state no documents.
    for harmless in (
        [0, 3, 4, 9, 0, 1],
        [4, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 0, 0],
        [5, 6, 5, 6, 5, 9],
    ):
        assert trained([{**row, "at": harmless}], position_column="at")[1] == harmless
    branches = "segment part = branch [lens]*  mask docs = paths"
    lens = {**row, "lens": [3, 2, 1]}
    assert trained([lens], branches, position_column="at") == separate(DOCUMENTS)


# By what they hold


def a_pack(rng, least=8, most=40):
    return [list(range(int(n))) for n in rng.integers(least, most, rng.integers(1, 9))]


KINDS = {
    "lengths": lengths, "borders": lambda docs: [0, *ends(docs)], "ends": ends,
    "positions": positions, "positions from 1": lambda docs: positions(docs, 1),
    "numbers": numbers, "numbers from 0": lambda docs: numbers(docs, 0),
    "padded numbers": lambda docs: [*numbers(docs)[:-2], 0, 0],
    "numbers as an array": lambda docs: np.array(numbers(docs)),
}  # fmt: skip


def refused_at(rows, rules=RowRules(), read=(), says=True):  # noqa: B008
    """Return the number of the first row that is refused, with the message; -1 if none is."""
    seen = UnreadColumns(rules, says)
    for number, row in enumerate(rows):
        n = len(row["tokens"])
        columns = {name: row[name] for name in read}
        tokens = np.array(row["tokens"])
        own = ReadRow(number, tokens, np.ones(n, np.bool_), np.arange(n), columns, None, False)
        try:
            seen.check(row, own)
        except RunError as error:
            return number, str(error)
    return -1, ""


@pytest.mark.parametrize("kind", KINDS)
def test_columns_of_any_name_that_can_only_state_documents_are_found(kind):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        packs = [a_pack(rng) for _ in range(60)]
        rows = [{"tokens": joined(docs), "packed_up": KINDS[kind](docs)} for docs in packs]
        number, said = refused_at(rows)
        assert 0 <= number < 20
        assert "column `packed_up` states" in said
        assert "and nothing reads it: in the rows so far it holds" in said
        assert refused_at(rows, RowRules(unchecked_columns=["packed_up"]))[0] == -1
        # One row that does not fit settles it, and the same rows prove no more when read again.
        assert refused_at([{"tokens": [0] * 40, "packed_up": [7, 2]}, *rows])[0] == -1
        alone = [{"tokens": joined(docs), "packed_up": KINDS[kind]([joined(docs)])}
                 for docs in packs]  # fmt: skip
        assert refused_at(alone)[0] == -1
        read = [{**row, "lens": lengths(docs)} for row, docs in zip(rows, packs, strict=True)]
        if kind not in ("positions from 1", "padded numbers"):
            assert refused_at(read, read=["lens"])[0] == -1


def test_rows_that_are_read_again_prove_no_more():
    docs = [list(range(n)) for n in (20, 30, 9)]
    for kind in ("lengths", "borders", "numbers"):
        row = {"tokens": joined(docs), "packed_up": KINDS[kind](docs)}
        seen, n = UnreadColumns(RowRules(), says=True), len(row["tokens"])
        for _ in range(99):
            own = ReadRow(0, np.zeros(n), np.ones(n, bool), np.arange(n), {}, None, False)
            seen.check(row, own)


def runs(rng, n, values, mean):
    found = []
    while len(found) < n:
        found += [int(rng.choice(values))] * int(rng.geometric(1 / mean))
    return found[:n]


def auxiliary(rng, n):
    """Columns that rows carry for other reasons, none of which states documents."""
    cut, few = int(rng.integers(0, n + 1)), int(rng.integers(1, 9))
    part = n // 3
    return {
        "old_ids": rng.integers(0, 50_000, n).tolist(), "symbols": rng.integers(0, 4, n).tolist(),
        "token_type_ids": [0] * cut + [1] * (n - cut),
        "mm_token_type_ids": runs(rng, n, [0, 1, 2], 9), "modes": runs(rng, n, [0, 1, 2], 9),
        "special_tokens_mask": [1, *[0] * (n - 2), 1][:n], "image_mask": runs(rng, n, [0, 1], 9),
        "who": [0] * part + [1] * part + [2] * (n - 2 * part),
        "zeros": [0] * n, "ones": [1] * n, "same": [7] * n, "scale": [1.0] * n,
        "flags": rng.integers(0, 2, n).tolist(), "marked": (rng.random(n) < 0.1).tolist(),
        "rewards": [*[0.0] * (n - 1), float(rng.integers(0, 2))], "dones": [*[0] * (n - 1), 1],
        "log_probs": (-rng.random(n)).tolist(), "advantages": [float(rng.normal())] * n,
        "signs": [int(rng.integers(-1, 2))] * n, "versions": np.sort(rng.integers(0, 3, n)),
        "word_ids": np.cumsum(rng.random(n) < 0.7).tolist(),
        "spelled": np.cumsum(rng.random(n) < 0.25).tolist(),
        "offset_mapping": [[i, i + 1] for i in range(n)],
        "offsets": np.cumsum(rng.integers(1, 6, n)).tolist(),
        "rising": list(range(n)), "from_one": list(range(1, n + 1)), "left": list(range(n))[::-1],
        "column": [*[0] * cut, *(i % 7 for i in range(n - cut))],
        "codes": [i % 4 for i in range(n)], "tiles": [i // 16 for i in range(n)],
        "image_grid": [[1, 16, 16]], "size": [n, 128],
        "picks": np.sort(rng.integers(0, n, few)), "counts": rng.integers(0, 2 * n // few + 1, few),
        "split": [cut, n - cut], "prompt_len": cut, "response_len": n - cut,
        "answer_lens": [n - cut], "system_len": few, "first_last": [0, n],
        "eos_at": [n - 1], "spans": [[0, cut]],
        "turn_lens": [cut, n - cut - (n - cut) // 2, (n - cut) // 2], "layers": [0, 12, 23],
        "budget": n, "id": int(rng.integers(1, 9)), "text": "abc", "messages": [{"role": "user"}],
        "pixels": np.zeros((3, 4, 4), np.float32), "router": rng.integers(0, 8, (n, 2)),
        "experts": rng.integers(0, 8, n), "ranks": rng.permutation(n), "entropy": rng.random(n),
        "sorted": np.sort(rng.integers(0, n, n)), "parents": [-1, *range(min(n, 5) - 1)],
        "nothing": None, "empty": [], "tags": ["a"] * n,
    }  # fmt: skip


@pytest.mark.parametrize(("sets", "rows"), [(5, 25), pytest.param(50, 200, marks=pytest.mark.slow)])
def test_columns_of_other_things_raise_no_alarm(sets, rows, caplog):
    rng = np.random.default_rng(sets)
    for _ in range(sets):
        drawn = [int(np.clip(rng.lognormal(4.5, 1.2), 1, 500)) for _ in range(rows)]
        found = [{"tokens": [0] * n, **auxiliary(rng, n)} for n in drawn]
        assert refused_at(found) == (-1, "")
    assert not [record for record in caplog.records if "`tiles`" not in record.getMessage()]


# Columns that add up only together


def a_group(rng):
    """Lengths of a prompt and its answers."""
    return int(rng.integers(3, 90)), rng.integers(1, 60, int(rng.integers(0, 6))).tolist()


SUMS = {
    "a number and a list": lambda p, a: {"ask": p, "tries": a},
    "a list and a number": lambda p, a: {"tries": a, "ask": p},
    "arrays": lambda p, a: {"ask": np.int64(p), "tries": np.array(a, np.int64)},
    "tensors": lambda p, a: {"ask": torch.tensor(p), "tries": torch.tensor(a, dtype=torch.int64)},
    "a list and nested lists": lambda p, a: {"asks": [p], "tries": [a]},
    "with zeros and parents": lambda p, a: {
        "none": 0, "ask": p, "tries": a, "up": [-1] * len(a), "more": [],
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SUMS)
def test_columns_that_add_up_together_are_found(kind):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        groups = [a_group(rng) for _ in range(60)]
        rows = [{"tokens": [0] * (p + sum(a)), **SUMS[kind](p, a)} for p, a in groups]
        number, said = refused_at(rows)
        assert 0 <= number < 30
        assert "add up to the tokens of every row so far, and nothing reads" in said
        assert "`tries`: they cut this row into parts of [" in said
        assert refused_at(rows, RowRules(unchecked_columns=["tries", "asks"]))[0] == -1
        # One row that does not fit settles it; so do rows that are read.
        other = {"tokens": [0] * 97, **SUMS[kind](3, [2, 2])}
        assert refused_at([other, *rows])[0] == -1
        read = [{**row, "lens": [p, *a]} for row, (p, a) in zip(rows, groups, strict=True)]
        assert refused_at(read, read=["lens"])[0] == -1


def test_columns_with_several_readings_are_told_once(caplog):
    rng = np.random.default_rng(7)
    for names in (("asked", "said"), ("nested",)):
        caplog.clear()
        rows = []
        for _ in range(20):
            asked, said = rng.integers(1, 40, (2, int(rng.integers(1, 5)))).tolist()
            own = [asked, said] if len(names) == 2 else [[asked, said]]
            rows.append(
                {"tokens": [0] * (sum(asked) + sum(said)), **dict(zip(names, own, strict=True))}
            )
        assert refused_at(rows) == (-1, "")
        (told,) = caplog.messages
        assert "add up to the tokens of every row so far" in told
        assert all(f"`{name}`" in told for name in names)
        caplog.clear()
        refused_at(rows, says=False)  # another rank says it
        assert refused_at(rows, RowRules(unchecked_columns=names)) == (-1, "")
        assert not caplog.messages


# Masks of what the loss counts

COUNTED = (
    "loss_mask", "completion_mask", "assistant_masks", "response_mask", "action_mask", "mask",
    "train_on", "label_mask", "loss_masks", "is_answer",
)  # fmt: skip
ROW = {"input_ids": [1, 2, 3, 4]}
ALL, LAST = separate([[1, 2, 3, 4]]), separate([[1, 2, 3, 4]], [0, 0, 1, 1])


@pytest.mark.parametrize("name", COUNTED)
def test_a_mask_of_another_tool_that_nothing_reads_is_refused(name):
    for value in ([0, 0, 1, 1], [False, False, True, True], np.array([0, 0, 1.0, 1])):
        says = rf"row 0: column `{name}` leaves out 2 of 4 .* 1 of them .*loss_column='{name}'\)"
        for policy in ("error", "skip"):
            with pytest.raises(RunError, match=says):
                trained([{**ROW, name: value}], policy=policy)
    harmless = [1, 1, 1, 1], None, [], [0, 1, 1, 1], "a", [[0, 0, 1, 1]] * 2, [5, 0, 7, 8]
    rows = [{**ROW, name: value} for value in harmless]
    assert trained(rows) == separate([ROW["input_ids"]] * len(rows))


@pytest.mark.parametrize("name", [*COUNTED, "attention_mask", "input_mask"])
def test_labels_that_count_what_a_mask_leaves_out_contradict_it(name):
    mask = [1, 1, 0, 0] if name in ("attention_mask", "input_mask") else [0, 0, 1, 1]
    for labels in ([1, 2, 3, 4], [-100, 2, 3, -100]):
        row = {**ROW, "labels": labels, name: mask}
        with pytest.raises(
            RunError, match=rf"column `{name}` leaves out 2 of 4 .* by their labels"
        ):
            trained([row])
    agreed = [token if counts else -100 for token, counts in zip([1, 2, 3, 4], mask, strict=True)]
    row = {**ROW, "labels": agreed, name: mask}
    assert trained([row]) == separate([[1, 2, 3, 4]], mask)


def test_padding_is_refused_wherever_it_lies():
    tail = {**ROW, "attention_mask": [1, 1, 0, 0]}
    with pytest.raises(RunError, match=r"leaves out 2 of 4 tokens.* give rows without"):
        trained([tail])
    assert trained([tail], loss_column="attention_mask")[2] == [(0, 2)]  # nothing sees the tail
    for mask in ([0, 0, 1, 1], [1, 0, 0, 1]):
        row = {**ROW, "attention_mask": mask, "labels": [-100 if not m else 1 for m in mask]}
        for rules in ({}, {"loss_column": "attention_mask"}):
            with pytest.raises(RunError, match="tokens behind see them as keys; rows need no pad"):
                trained([row], **rules)
        assert trained([row], unchecked_columns=["attention_mask"])[0] == [1, 2, 3, 4]
    for name in ("segment_ids", "document_ids"):  # tunix pads with number 0, others with -1
        for pad in (0, -1):
            row = {**ROW, name: [1, 1, 1, pad]}
            with pytest.raises(RunError, match=f"column `{name}` leaves out 1 of 4 tokens"):
                trained([row])
            assert trained([{**row, "labels": [1, 2, 3, -100]}])[2] == [(0, 2), (1, 3)]


def test_masks_of_prompts_and_weights_are_refused_too():
    for name in ("prompt_mask", "padding_mask", "is_prompt"):
        row = {**ROW, name: [1, 1, 0, 0]}
        with pytest.raises(
            RunError, match=rf"`{name}` leaves out 2 of 4 .* loss_mask of 1 - {name}"
        ):
            trained([row])
        assert trained([{**row, name: [0] * 4}]) == ALL
    for name in ("loss_weights", "loss_scale", "weights", "loss_mask"):
        row = {**ROW, name: [0.0, 0.5, 1.0, 1.0]}
        with pytest.raises(RunError, match=f"column `{name}` weighs 2 of 4 tokens.*extra_columns"):
            trained([row])
        assert trained([{**row, name: [1.0] * 4}]) == ALL


def test_a_mask_of_some_tokens_only_cannot_be_read():
    for name in ("response_mask", "assistant_masks", "token_loss_mask"):
        row = {**ROW, name: [1, 1]}
        with pytest.raises(RunError, match=f"column `{name}` holds 2 values for 4 tokens"):
            trained([row])
        assert trained([row], unchecked_columns=(name,)) == ALL
    assert trained([{**ROW, "mask": [1, 1], "pixel_mask": [1], "attention_mask": [1]}]) == ALL


def test_labels_of_any_name_are_known_by_what_they_hold():
    for values in ([-100, -100, 3, 4], [-100, 3, 4, -100]):  # the second are shifted
        row = {**ROW, "gold": values}
        with pytest.raises(RunError, match="column `gold` holds labels that leave out 2 of 4"):
            trained([row])
        assert trained([row], unchecked_columns=("gold",)) == ALL
    rows = [{**ROW, "gold": [1, 2, 3, 4]}] * 3  # these rows say nothing
    with pytest.raises(RunError, match="row 3: column `gold` holds labels"):
        trained([*rows, {**ROW, "gold": [-100, 2, -100, 4]}])
    assert trained([{**ROW, "gold": [-100, -100, 3, 4]}], labels_column="gold") == LAST
    harmless = [-100] * 4, [-100, -100, 9, 4], [1, 2, 3, 4], [-100, 2, 3, 4], [-100, 3]
    rows = [{**ROW, f"gold_{at}": values} for at, values in enumerate(harmless)]
    assert trained(rows) == separate([[1, 2, 3, 4]] * len(rows))
