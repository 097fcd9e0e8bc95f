"""Every way out that a message of the loader offers is taken here, and leads where it says.

A remedy of rows is right if the loader then gives the tokens, positions and targets of the separate
sequences, which `packed_rows.separate` lists in its own words. The last test reads the sentences of
`dcp_runtime/data`: one that no test here knows fails it.
"""

import ast
import json
import re
import warnings
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from loader_options import (
    ONE,
    OPTIONS,
    Stream,
    data_of,
    ends,
    joined,
    make_loader,
    numbers,
    positions,
    separate,
    trained,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional
from torch.utils.data import DataLoader

import dcp_runtime.data
from dcp_dsl import DatasetError, Spec, load, read_dataset
from dcp_dsl.cli import dcpm
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import (
    DCPDataloader,
    DeviceRates,
    Packing,
    Planning,
    RowRules,
    RunError,
    next_token_loss,
)
from dcp_runtime.data.choices import dealing_of, find_replicas

KNOWN = {}
"""Fragments of sentences, by the test that takes their way out."""


def remedy(*fragments):
    def note(test):
        KNOWN.update(dict.fromkeys(fragments, test.__name__))
        return test

    return note


def refused(*given, **options):
    with pytest.raises((DatasetError, RunError)) as caught:
        trained(*given, **options)
    return str(caught.value)


DOCUMENTS = [[10, 11, 12], [20, 21], [30]]
TOKENS, APART, ONE_ROW = joined(DOCUMENTS), separate(DOCUMENTS), separate([joined(DOCUMENTS)])
ROW = {"input_ids": [1, 2, 3, 4]}
ALL, LAST = separate([[1, 2, 3, 4]]), separate([[1, 2, 3, 4]], [0, 0, 1, 1])


def mask_of(said):
    """Return the first mask that a message writes out."""
    segment, mask = re.search(r"`(segment doc = [^`]*)` and `(mask docs = [^`]*)`", said).groups()
    return f"{segment}\n{mask}"


def rules_of(said):
    """Return the first choices of `RowRules` that a message writes out."""
    call = ast.parse(re.search(r"RowRules\([^(]*\)", said)[0], mode="eval").body
    return {each.arg: ast.literal_eval(each.value) for each in call.keywords}


def unchecked_of(said):
    """Return the columns that a message names as those to leave unchecked."""
    return ast.literal_eval(re.search(r"unchecked_columns=(\([^)]*\))", said)[1])


# Documents, positions and masks that nothing reads


@remedy("`segment doc = branch [{}]*` and `mask docs = paths` read it", "column `{}` states {}, {}")
def test_lengths_are_read_by_a_layout():
    row = {"input_ids": TOKENS, "seq_lengths": [3, 2, 1]}
    said = refused([row])
    assert trained([row], mask_of(said)) == APART


@remedy(
    "`segment doc = branch [doc_lens]*` and `mask docs = paths` read a column doc_lens, here {}"
)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cu_seqlens", [0, *ends(DOCUMENTS)]), ("seq_start_id", [0, 3, 5]),
        ("seq_idx", [numbers(DOCUMENTS, 0)]), ("position_ids", [positions(DOCUMENTS)] * 3),
        ("attention_mask", numbers(DOCUMENTS)), ("seq_lens", [3, 2]),
    ],
)  # fmt: skip
def test_documents_become_lengths(name, value):
    row = {"input_ids": TOKENS, name: value}
    said = refused([row])
    assert trained([{**row, "doc_lens": [3, 2, 1]}], mask_of(said)) == APART
    shown = [int(n) for n in re.search(r"doc_lens, here \[(.*?)\]", said)[1].split(", ")]
    assert shown == [3, 2, 1]


@remedy("{}; `segment doc = ids({})` and `mask docs = causal per doc` read this column")
@pytest.mark.parametrize("name", ["segment_ids", "attention_mask", "packed_up"])
def test_numbers_are_read_as_they_are(name):
    row = {"input_ids": TOKENS, name: numbers(DOCUMENTS)}
    rows = [row]
    if name == "packed_up":  # known by what it holds, in rows before
        before = [[7] * n for n in (20, 30, 9, 40)]
        rows = [{"input_ids": joined(before), name: numbers(before)} for _ in range(3)] + [row]
    said = refused(rows, token_budget=512)
    _, mask = re.findall(r"`segment doc = [^`]*` and `mask docs = [^`]*`", said)
    found = trained([row], mask_of(mask), hidden_targets="leave_out")
    assert found == separate(DOCUMENTS, counts_on=True)


@remedy(
    "`segment doc = positions({})` and `mask docs = causal per doc` read it",
    "positions that begin anew at token {}", "and nothing reads it: by its name it holds {}",
    "and nothing reads it: in the rows so far it holds {}",
    "and the mask does not read them: it holds {}",
)  # fmt: skip
@pytest.mark.parametrize("rules", [{}, {"position_column": "position_ids"}])
def test_positions_that_begin_anew_are_read_by_mask_and_rules(rules):
    row = {"input_ids": TOKENS, "position_ids": positions(DOCUMENTS)}
    said = refused([row], **rules)
    assert trained([row], mask_of(said), hidden_targets="leave_out", **rules_of(said)) == APART


GROUPS = [
    (20, [30, 9, 11]),
    (7, [40, 25]),
    (13, [8, 21, 50, 4]),
    (2, [3, 1]),
    (5, [60, 9, 7]),
    (4, [70, 5]),
]


def rows_of_groups(groups):
    """Return rows of a prompt with answers, and what they train on: each answer on its own path."""
    rows, tokens, places, targets = [], [], [], []
    for prompt, answers in groups:
        length, start = prompt + sum(answers), len(tokens)
        own = [(17 * at + start) % 101 for at in range(length)]
        rows.append({"input_ids": own, "ask": prompt, "tries": answers})
        tokens += own
        places += range(prompt)
        targets += [(start + at - 1, own[at]) for at in range(1, prompt)]
        begin = prompt
        for answer in answers:
            places += range(prompt, prompt + answer)
            for at in range(begin, begin + answer):
                before = prompt - 1 if at == begin else at - 1
                targets.append((start + before, own[at]))
            begin += answer
    return rows, (tokens, places, sorted(targets))


@remedy("columns {} add up to the tokens of every row so far, and nothing reads {}: they cut this")
def test_columns_that_add_up_are_read_by_the_mask_that_the_message_writes():
    rows, expected = rows_of_groups(GROUPS)
    for policy in ("error", "skip"):
        said = refused(rows, token_budget=512, policy=policy)
    spec = Spec.from_text(re.search(r"`(for .*?)`", said)[1])
    assert trained(rows, spec, token_budget=512) == expected
    causal = separate([row["input_ids"] for row in rows])
    assert trained(rows, token_budget=512, unchecked_columns=unchecked_of(said)) == causal


@remedy("columns %s add up to the tokens of every row so far, and nothing reads them: tokens")
def test_columns_with_several_readings_are_read_or_unchecked(tmp_path, caplog):
    packs = [([20, 9], [30, 11]), ([7, 5, 8], [40, 25, 2]), ([13, 21], [8, 50])] * 2
    rows = [{"tokens": [*range(sum(a) + sum(b))], "asked": a, "said": b} for a, b in packs]
    own = [[*range(len(row["tokens"]))] for row in rows]
    assert trained(rows, token_budget=1024) == separate(own)
    (said,) = caplog.messages
    assert "`dcpm init` shows" in said
    trained(rows, token_budget=1024, unchecked_columns=unchecked_of(said))
    assert caplog.messages == [said]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = CliRunner().invoke(dcpm, ["init", str(path), "--out", "-"]).stdout
    spec = Spec.from_text(re.search("# (segment .*)", text)[1])
    documents = []
    for a, b in packs:
        ends = [0, *accumulate(x + y for x, y in zip(a, b, strict=True))]
        documents += [[*range(first, last)] for first, last in pairwise(ends)]
    assert trained(rows, spec, token_budget=1024) == separate(documents)


@remedy("column `{}` holds other positions, and nothing reads it")
def test_other_positions_are_read():
    row = {**ROW, "position_ids": [0, 5, 6, 7]}
    found = trained([row], **rules_of(refused([row])))
    assert found == (ALL[0], [0, 5, 6, 7], ALL[2])


@remedy("RowRules(position_column=...) reads a column with one of them per token, extra_columns=(")
def test_positions_of_several_dims_are_columns_of_their_own():
    row = {**ROW, "position_ids": [[0, 1, 1, 2], [0, 1, 2, 2], [0, 1, 1, 3]]}
    assert "position_column=...) reads" in refused([row])
    parts = dict(zip("thw", row.pop("position_ids"), strict=True))
    data = data_of([{**row, **parts}], "plain", position_column="t", extra_columns=("h", "w"))
    assert data.position_ids.tolist() == parts["t"]
    assert [data.extra[name].tolist() for name in "hw"] == [parts["h"], parts["w"]]


@remedy("RowRules(unchecked_columns=({},)) trains as if it were not there")
def test_a_column_that_is_unchecked_changes_nothing():
    for name, value in (
        ("seq_lens", [3, 2, 1]), ("segment_ids", numbers(DOCUMENTS)), ("loss_mask", [0] * 5 + [1]),
        ("position_ids", positions(DOCUMENTS)), ("loss_scale", [0.5] * 6),
    ):  # fmt: skip
        row = {"input_ids": TOKENS, name: value}
        names = re.search(r"unchecked_columns=\('(\w+)',\)", refused([row])).groups()
        assert trained([row], unchecked_columns=names) == ONE_ROW


@remedy(
    "RowRules(loss_column={}{}) leaves these targets out", "column `{}` {} {} of {} tokens, and"
)
def test_masks_of_the_loss_are_read():
    for labels in ({}, {"labels": [1, 2, 3, 4]}):
        row = {**ROW, **labels, "completion_mask": [0, 0, 1, 1]}
        said = refused([row])
        assert ("labels_column=None" in said) == bool(labels)
        assert trained([row], **rules_of(said)) == LAST


@remedy("column `{}` holds {} values for {} tokens, and nothing reads it: RowRules(loss_column={})")
def test_a_mask_of_the_response_gets_a_value_for_every_token():
    row = {**ROW, "response_mask": [1, 1]}
    rules = rules_of(refused([row]))
    row["response_mask"] = [0, 0, *row["response_mask"]]
    assert trained([row], **rules) == LAST


@remedy("column `{}` holds labels that leave out {} of {} tokens, and nothing reads it")
def test_labels_of_another_name_are_read():
    row = {**ROW, "gold": [-100, -100, 3, 4]}
    assert trained([row], **rules_of(refused([row]))) == LAST


@remedy("RowRules(loss_column='loss_mask'{}) reads a column loss_mask of 1 - {}")
def test_a_mask_of_the_prompt_is_turned_over():
    for labels in ({}, {"labels": [1, 2, 3, 4]}):
        row = {**ROW, **labels, "prompt_mask": [1, 1, 0, 0]}
        rules = rules_of(refused([row]))
        row["loss_mask"] = [1 - value for value in row["prompt_mask"]]
        assert trained([row], **rules) == LAST


@remedy("give one loss_column that is 0 where `{}` or `{}` says so")
def test_two_masks_become_one():
    row = {**ROW, "completion_mask": [0, 1, 1, 1], "assistant_masks": [1, 0, 1, 1]}
    said = refused([row], loss_column="completion_mask")
    assert "column `assistant_masks` leaves out 1 of 4" in said
    assert "give one loss_column that is 0 where `assistant_masks` or `completion" in said
    masks = zip(row.pop("completion_mask"), row.pop("assistant_masks"), strict=True)
    both = {**row, "both": [one * other for one, other in masks]}
    assert trained([both], loss_column="both") == LAST


@remedy(
    "RowRules(extra_columns=({},)) carries it along, and dataclasses.replace(local_data, target_"
)
def test_weights_weigh_the_loss():
    row = {**ROW, "loss_weights": [1.0, 0.5, 0.0, 2.0]}
    assert "weighs 3 of 4 tokens" in refused([row])
    data = data_of([row], "plain", extra_columns=("loss_weights",))
    weighed = replace(data, target_weights=data.target_extra["loss_weights"])
    logits = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    own = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64)
    losses = functional.cross_entropy(logits[:3], torch.tensor([2, 3, 4]), reduction="none")
    (expected,) = torch.autograd.grad((losses * own).sum() / 3, logits)
    (found,) = torch.autograd.grad(next_token_loss(logits, weighed), logits)
    torch.testing.assert_close(found, expected)


@remedy(
    "rows need no padding: give rows without these tokens",
    "column `{}` leaves out {} of {} tokens, the first of them token {}, and tokens behind",
)
def test_padding_is_cut_off():
    for mask, labels in (([0, 1, 1, 1], True), ([1, 1, 1, 0], False), ([1, 1, 1, 0], True)):
        row = {**ROW, "attention_mask": mask, **({"labels": [1, 2, 3, 4]} if labels else {})}
        assert "give rows without these tokens" in refused([row])
        kept = [at for at, is_kept in enumerate(mask) if is_kept]
        cut = {name: [values[at] for at in kept] for name, values in row.items()}
        assert trained([cut]) == separate([[ROW["input_ids"][at] for at in kept]])


@remedy("column `%s` holds 0 for %d of %d tokens and 1 for the others, and nothing reads it")
def test_a_column_that_may_be_a_mask_is_read_or_unchecked(caplog):
    mask = [0] * 8 + [1] * 8
    rows = [{"tokens": [*range(16)], "spoken": mask} for _ in range(8)]
    trained(rows, token_budget=512)
    (said,) = caplog.messages
    found = trained(rows, token_budget=512, **rules_of(said))
    assert found == separate([[*range(16)]] * 8, mask * 8)
    names = re.search(r"unchecked_columns=\('(\w+)',\)", said).groups()
    trained(rows, token_budget=512, unchecked_columns=names)
    assert caplog.messages == [said]


# Tokens, labels and other columns


@remedy(
    "row {}: expected columns by name, got {}", "expected a data set, got {}; read_dataset(path"
)
def test_files_are_read(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [1, 2, 3, 4]}\n')
    for given in (str(path), path, path.read_text().splitlines()):
        assert "read_dataset(path)" in refused(given)
    assert trained(read_dataset(path)) == ALL


@remedy(
    "row {} has no column `{}`; its columns are: {}; token_column= names another one",
    "row {}: expected `{}` to be integers or bytes, got {}; token_column= names another column",
    "{}: `tokens` and `input_ids` hold other tokens",
)
def test_another_column_of_tokens_is_named():
    ids = [1, 2, 3, 4]
    for row, column in (
        ({"ids": ids}, "ids"), ({"tokens": ["a", "b"], "ids": ids}, "ids"),
        ({"tokens": "a text", "input_ids": ids}, "input_ids"),
        ({"tokens": [5, 6], "input_ids": ids}, "input_ids"),
        ({"input_ids": [5, 6], "tokens": ids}, "tokens"),
    ):  # fmt: skip
        assert "token_column" in refused([row])
        assert trained([row], token_column=column) == ALL


@remedy("row {}: expected `{}` to be integers or bytes, got a batch of shape {}; give the rows one")
def test_rows_of_a_batch_are_given_one_by_one():
    batch = {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])}
    assert "one by one" in refused([batch])
    assert trained([{"input_ids": row} for row in batch["input_ids"]]) == separate(
        [[1, 2, 3, 4], [5, 6, 7, 8]]
    )


@remedy("expected a data set of rows, got batches of torch's DataLoader")
def test_a_loader_of_torch_gives_its_data_set_or_rows():
    rows = [ROW, {"input_ids": [5, 6]}]
    both = separate([[1, 2, 3, 4], [5, 6]])
    assert "batch_size=None" in refused(DataLoader(rows, batch_size=2))
    assert trained(DataLoader(rows, batch_size=2).dataset) == both
    assert trained(DataLoader(rows, batch_size=None)) == both


@remedy("expected a data set of rows, got a DataFrame; give frame.to_dict('records')")
def test_a_frame_becomes_records():
    pandas = pytest.importorskip("pandas", exc_type=ImportError)
    frame = pandas.DataFrame([ROW, {"input_ids": [5, 6]}])
    assert "frame.to_dict('records')" in refused(frame)
    assert trained(frame.to_dict("records")) == separate([[1, 2, 3, 4], [5, 6]])


@remedy(
    "give one of them, such as dataset['train']", "give a list of rows, a dict each",
    "expected a data set of rows, got {}; {}",
)  # fmt: skip
def test_one_split_or_a_list_of_rows_is_given():
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    split = datasets.Dataset.from_list([ROW])
    for splits in (
        datasets.DatasetDict({"train": split, "test": split}),
        datasets.IterableDatasetDict({"train": split.to_iterable_dataset()}),
    ):
        said = refused(splits)
        assert re.search(
            r"got the splits 'train'.*; give one of them, such as dataset\['train'\]", said
        )
        assert trained(splits["train"]) == ALL
    columns = {"input_ids": [[1, 2, 3, 4]]}
    assert "got a dict of 'input_ids'; give a list of rows" in refused(columns)
    assert trained([{"input_ids": ids} for ids in columns["input_ids"]]) == ALL


@remedy("expected a data set of rows, got {}; it needs rows by number (len and []) or to be iterab")
def test_rows_by_number_or_one_after_another():
    class Rows:
        def __len__(self):
            return 1

        def __getitem__(self, number):
            return [ROW][number]

    assert "it needs rows by number" in refused(3)
    assert trained(Rows()) == trained(Stream([ROW])) == ALL


@remedy("expected mask_fn to be a loaded spec", "mask_fn must give a Mask or a Stack for each row")
def test_a_mask_is_given_as_one(tmp_path):
    (tmp_path / "a.dcpm").write_text('mask m = causal\nstack s = m\nfor "*" use m')
    spec = load(tmp_path / "a.dcpm")
    assert "load(path)" in refused([ROW], 3)
    assert "must give a Mask or a Stack" in refused([ROW], lambda _: "m")
    for given in (spec, spec.mask("m"), spec.stack("s"), lambda _: spec.mask("m")):
        assert trained([ROW], given) == ALL


@remedy(
    "row {} had {} tokens when the loader was made and has {} now; make a new loader",
    "row {} is gone: the data set had {} rows when the loader was made and has {} now; make a new",
)
def test_a_new_loader_reads_rows_that_changed():
    for change, says in (
        (lambda rows: rows[1].update(input_ids=[8, 9]), "row 1 had 4 tokens when .* has 2 now"),
        (lambda rows: rows.pop(), "row 1 is gone: the data set had 2 rows .* has 1 now"),
    ):
        rows = [dict(ROW), dict(ROW)]
        loader = make_loader(rows, CAUSAL, **ALONE)
        change(rows)
        with pytest.raises(DatasetError, match=f"{says}; make a new loader"):
            list(loader)
        assert trained(rows) == separate([row["input_ids"] for row in rows])


@remedy("the rows came from a {}, which gives them only once; for more epochs give list(rows)")
def test_a_generator_becomes_a_list_or_begins_anew():
    def two_epochs(rows):
        loader = make_loader(rows, CAUSAL, **ALONE)
        return [data.tokens.tolist() for _ in range(2) for data, _ in loader]

    with pytest.raises(DatasetError, match=r"give list\(rows\)"):
        two_epochs(iter([ROW]))
    assert two_epochs(list(iter([ROW]))) == two_epochs(Stream([ROW])) == [ROW["input_ids"]] * 2


@remedy(
    "the stream ended after {} rows, the saved state is behind row {}; resume with the data set"
)
def test_a_stream_resumes_with_its_own_rows():
    rows = [{"input_ids": [10 * n, 10 * n + 1]} for n in range(4)]
    options = {**ALONE, "token_budget": 2}
    loader = make_loader(Stream(rows), CAUSAL, **options)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    other = make_loader(Stream(rows[:1]), CAUSAL, **options)
    other.load_state_dict(state)
    says = (
        "the stream ended after 1 rows, the saved state is behind row 2; resume with the data set"
    )
    with pytest.raises(DatasetError, match=says):
        list(other)
    again = make_loader(Stream(rows), CAUSAL, **options)
    again.load_state_dict(state)
    assert [data.tokens.tolist() for data, _ in again] == [[20, 21], [30, 31]]


@remedy("the data set has no rows, so nothing says which mask they get; expected at least one row")
def test_a_data_set_with_a_row_has_a_mask():
    spec = Spec.from_text('mask m = causal\nfor "*" having input_ids use m')
    assert "expected at least one row" in refused([], spec)
    assert trained([ROW], spec) == ALL


@remedy(
    "policy='skip' left out {} of {} rows; the first: {}; mend the rows, or choose the mask",
    "drop_last=True leaves out the last global batch, and the {} usable of {} rows fill no other",
    "policy='skip' leaves such rows out and counts them",
    "{}; {}, or choose policy='truncate' or policy='skip'",
)
def test_rows_that_cannot_be_used_are_skipped_cut_or_mended():
    text, bad = "segment d = [lens]*  mask docs = causal per d", {**ROW, "lens": [9]}
    assert "left out 1 of 1 rows" in refused([bad], text, policy="skip")
    assert trained([{**ROW, "lens": [4]}], text) == trained([bad]) == ALL
    assert "policy='skip' leaves such rows out" in refused([bad], text)
    assert trained([bad, {**ROW, "lens": [4]}], text, policy="skip") == ALL
    long = {"input_ids": [1, 2, 3, 4, 5]}
    assert "choose policy='truncate' or policy='skip'" in refused([long], token_budget=4)
    assert trained([long], token_budget=4, policy="truncate") == ALL
    assert trained([long, ROW], token_budget=4, policy="skip") == ALL
    assert "choose drop_last=False, or a smaller token_budget" in refused([ROW], drop_last=True)
    assert trained([ROW], drop_last=False) == ALL
    assert trained([ROW, ROW], token_budget=4, drop_last=True) == ALL


@remedy(
    "columns {} and {} contradict each other at {} of {} tokens",
    "; RowRules(labels_column=None) do",
)
def test_one_of_two_columns_that_contradict_each_other_is_read():
    row = {**ROW, "labels": [-100, -100, 3, 4], "mask": [1, 1, 0, 1]}
    said = refused([row], loss_column="mask")
    assert "at 2 of 4 tokens: `mask` counts token 1 as a target, `labels` leaves it out; " in said
    assert "RowRules(labels_column=None), or no loss_column" in said
    read = trained([row], loss_column="mask", labels_column=None)
    assert read == separate([ROW["input_ids"]], row["mask"])
    row["mask"] = [0, 0, 1, 1]
    assert trained([{**row, "mask": [0, 0, 1, 1]}], loss_column="mask") == LAST  # mended
    # No loss_column: labels alone, which leave out more than the mask does.
    assert trained([{**row, "mask": [1, 1, 1, 1]}]) == LAST
    wrong = {**ROW, "labels": "abcd"}
    assert "RowRules(labels_column=None) does not read it" in refused([wrong])
    assert trained([wrong], labels_column=None) == ALL


@remedy("expected token ids from 0, got {} at token {}; rows need no padding, and a labels column")
def test_negative_tokens_are_padding_or_labels():
    assert "got -100 at token 3" in refused([{"input_ids": [1, 2, 3, -100]}])
    assert trained([{"input_ids": [1, 2, 3]}]) == separate([[1, 2, 3]])
    row = {"input_ids": [1, 2, 3, 0], "labels": [1, 2, 3, -100]}
    assert trained([row]) == separate([[1, 2, 3, 0]], [1, 1, 1, 0])


@remedy(
    "column `{}` holds floats in one row of a batch and in another integers that float32 cannot"
)
def test_extra_numbers_are_all_floats_or_all_integers():
    rows = [{"tokens": [1, 2], "x": [2**24 + 1, 0]}, {"tokens": [3], "x": [0.5]}]
    with pytest.raises(RunError, match="make all its values floats, or all integers"):
        data_of(rows, "plain", extra_columns=("x",))
    for change, kept in ((float, [2.0**24, 0.0, 0.5]), (int, [2**24 + 1, 0, 0])):
        changed = [{**row, "x": [change(value) for value in row["x"]]} for row in rows]
        assert data_of(changed, "plain", extra_columns=("x",)).extra["x"].tolist() == kept


@remedy("the masks of two layers read layouts with different branches; one layout must say which")
def test_layers_read_one_layout_with_branches():
    text = (
        "segment a = branch [m]*\nsegment b = branch [n]*\nsegment c = [n]*\n"
        "stack two = paths(a), paths(b)\nstack one = paths(a), causal per c"
    )
    row = {"input_ids": TOKENS, "m": [3, 2, 1], "n": [2, 2, 2]}
    assert "one layout must say" in refused([row], Spec.from_text(text).stack("two"))
    assert trained([row], Spec.from_text(text).stack("one"))[:2] == APART[:2]


@remedy("column `{}` is shifted already: every label is the token behind its own")
def test_shifted_labels_are_shifted_back():
    tokens = list(range(20, 32))
    labels = [*tokens[1:], -100]
    row = {"tokens": tokens, "labels": labels}
    assert "shift the column back by one token" in refused([row])
    assert trained([{**row, "labels": [-100, *labels[:-1]]}]) == separate([tokens])


# Targets and their loss


def warned(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = run()
    return found, [str(each.message) for each in caught]


@remedy(
    "{} of a batch are left out: these tokens do not see the token before them",
    "; position ids count on through the row, position_column= gives others",
)
def test_hidden_targets_are_left_out_kept_or_named():
    text = "segment doc = [lens]*  mask docs = causal per doc"
    row = {"input_ids": TOKENS, "lens": [3, 2, 1]}
    expected = separate(DOCUMENTS, counts_on=True)
    found, (said,) = warned(lambda: trained([row], text))
    assert found == expected
    assert "hidden_targets='leave_out'" in said
    labels = [-100 if not at else token for own in DOCUMENTS for at, token in enumerate(own)]
    counted = [int(label != -100) for label in labels]
    for changed, rules in (
        (row, {"hidden_targets": "leave_out"}), ({**row, "labels": labels}, {}),
        ({**row, "counted": counted}, {"loss_column": "counted"}),
    ):  # fmt: skip
        assert warned(lambda c=changed, r=rules: trained([c], text, **r)) == (expected, [])
    kept = trained([row], text, hidden_targets="keep")
    assert kept[2] == ONE_ROW[2]
    at = {**row, "at": positions(DOCUMENTS)}
    assert trained([at], text, position_column="at", hidden_targets="leave_out") == APART


@remedy("{} of a batch are seen by the token that predicts them: the model can copy them")
def test_seen_targets_are_left_out_or_not_seen():
    text = "segment part = text[n] image[..]\n@ahead mask docs = causal or same(image)"
    row = {**ROW, "n": 2}
    _, (said,) = warned(lambda: trained([row], text))
    assert "a loss_column with 0 or a labels column with -100" in said
    for changed, rules in (
        ({**row, "counted": [1, 1, 1, 0]}, {"loss_column": "counted"}),
        ({**row, "labels": [1, 2, 3, -100]}, {}),
    ):
        found, none = warned(lambda c=changed, r=rules: trained([c], text, **r))
        assert (found[2], none) == ([(0, 2), (1, 3)], [])
    assert warned(lambda: trained([row], "mask docs = causal")) == (ALL, [])


@remedy(
    "next_token_loss: expected logits [{}, V]", "next_token_loss: the logits are on {}",
    "next_token_loss: expected targets from 0 to {}",
)  # fmt: skip
def test_a_loss_gets_the_logits_of_its_tokens():
    data, logits = data_of([ROW], "plain"), torch.randn(4, 5)
    with pytest.raises(RunError, match="give the logits of the tokens of this local_data, unshif"):
        next_token_loss(logits[:-1], data)
    expected = functional.cross_entropy(logits[:3], torch.tensor([2, 3, 4]))
    torch.testing.assert_close(next_token_loss(logits, data), expected)
    with pytest.raises(RunError, match=r"give local_data.to\(logits.device\)"):
        next_token_loss(logits.to("meta"), data)
    torch.testing.assert_close(next_token_loss(logits, data.to(logits.device)), expected)
    with pytest.raises(
        RunError, match="leave such targets out: labels column with -100, or loss_c"
    ):
        next_token_loss(logits[:, :4], data)
    labelled = data_of([{**ROW, "labels": [1, 2, 3, -100]}], "plain")
    masked = data_of([{**ROW, "c": [1, 1, 1, 0]}], "plain", loss_column="c")
    expected = functional.cross_entropy(logits[:2, :4], torch.tensor([2, 3]))
    for data in (labelled, masked):
        torch.testing.assert_close(next_token_loss(logits[:, :4], data), expected)


# Choices

CAUSAL = Spec.from_text("mask docs = causal").mask("docs")
ALONE = {**OPTIONS, "cluster": ONE}


def choice_refused(make):
    with pytest.raises(RunError) as caught:
        make()
    return str(caught.value)


@remedy(
    "{}: expected a {}, got {}; give {}={}(...), which holds the choices of this kind",
    "{}: expected at least {}, got {}", "{}: expected one of {}, got {}",
    "RowRules.{}: expected a tuple of names, got {}",
)  # fmt: skip
def test_choices_are_given_by_their_groups():
    with pytest.raises(RunError, match=r"give rows=RowRules\(\.\.\.\)"):
        DCPDataloader([ROW], CAUSAL, rows="skip")
    assert DCPDataloader([ROW], CAUSAL, rows=RowRules(policy="skip")).screening.policy == "skip"
    assert "expected at least 1" in choice_refused(lambda: Packing(token_budget=0))
    assert Packing(token_budget=1).token_budget == 1
    policies = re.search("one of (.*), got", choice_refused(lambda: RowRules("drop")))[1]
    assert [RowRules(policy).policy for policy in policies.split(", ")] == policies.split(", ")
    for name in ("extra_columns", "unchecked_columns"):
        said = choice_refused(lambda name=name: RowRules(**{name: "advantages"}))
        names = ast.literal_eval(said.split("one column is ")[1])
        assert getattr(RowRules(**{name: names}), name) == ("advantages",)


@remedy(
    "Packing.width: 'per_document' spreads rows by work over devices of all replicas",
    "Packing.window: {} global batches are dealt together by work",
    "Packing.width: 'per_document' joins plans that keep all heads of a tile on one device",
    "Packing.replicas: expected a divisor of the {} ranks, got {}",
    "expected a rank from 0 to {}, the devices of the cluster, got {}",
    "Planning.cluster: expected None where rates are given",
    "Planning.rates: expected one replica, whose ranks compare what they measured",
)
def test_choices_that_go_together():
    assert "expected group='all' and balance='work'" in choice_refused(
        lambda: Packing(width="per_document", group="best")
    )
    assert Packing(width="per_document", group="all", balance="work").width == "per_document"
    assert "expected balance='work'" in choice_refused(lambda: Packing(window=2, balance="order"))
    assert Packing(window=2, balance="work").window == 2
    four = Planning(cluster=Cluster(1, 4))
    said = choice_refused(lambda: find_replicas(Packing(replicas=3), four))
    for count in map(int, re.search(r"4 ranks are (.*) replicas", said)[1].split(", ")):
        assert find_replicas(Packing(replicas=count), four).count == count
    assert "expected a rank from 0 to 3" in choice_refused(
        lambda: find_replicas(Packing(), replace(four, rank=4))
    )
    assert find_replicas(Packing(), replace(four, rank=3)).device == 3
    rates = DeviceRates(Cluster(1, 4))
    assert "DeviceRates(cluster)" in choice_refused(lambda: Planning(cluster=ONE, rates=rates))
    planning = Planning(rates=rates)
    assert planning.cluster == Cluster(1, 4)
    assert "leave rates out" in choice_refused(lambda: find_replicas(Packing(replicas=2), planning))
    assert find_replicas(Packing(replicas=2), four).count == 2
    spread = Packing(width="per_document")
    heads = replace(four, shape=ModelShape(4, 4), config=PlanConfig("static:heads"))
    said = choice_refused(lambda: dealing_of(spread, heads, find_replicas(spread, heads)))
    for name in re.search("take '(.*)' or '(.*)'", said).groups():
        other = replace(heads, config=PlanConfig(name))
        assert dealing_of(spread, other, find_replicas(spread, other)).devices == 4


@remedy(
    "Packing.replicas: {} replicas, but Planning.group holds the ranks of one",
    "Packing.replicas: expected {}, as the dims {} of the mesh say",
    "Planning.group: expected a DeviceMesh with named dims",
    "Planning.group: expected a DeviceMesh with a dim {}",
    "Planning.group: expected a mesh of all {} ranks",
    "Planning.cluster: expected the {} devices of {} replicas of {} ranks, got {}",
)
@pytest.mark.usefixtures("rank_2_of_4")
def test_meshes_name_replicas_and_their_ranks():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    said = choice_refused(lambda: find_replicas(Packing(replicas=2), Planning(group=mesh["cp"])))
    assert "give the DeviceMesh of all of them, with dims named dp and cp" in said
    found = find_replicas(Packing(replicas=2), Planning(group=mesh))
    assert (found.count, found.context_ranks, found.device) == (2, 2, 2)
    said = choice_refused(lambda: find_replicas(Packing(replicas=4), Planning(group=mesh)))
    assert re.search("expected 2, as the dims dp, cp of .* got 4; leave it out", said)
    assert find_replicas(Packing(), Planning(group=mesh)).count == 2
    plain = init_device_mesh("cpu", (2, 2))
    said = choice_refused(lambda: find_replicas(Packing(), Planning(group=plain)))
    assert re.search(r"named dims, got 2 dims without names.*mesh_dim_names=\('dp', 'cp'\)", said)
    other = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "sp"))
    said = choice_refused(lambda: find_replicas(Packing(), Planning(group=other)))
    assert re.search("a dim 'cp', whose ranks .* got the dims dp, sp.*pass that dim alone", said)
    assert find_replicas(Packing(), Planning(group=other["sp"])).context_ranks == 2
    half = mesh_of([[0, 1]])
    said = choice_refused(lambda: find_replicas(Packing(), Planning(group=half)))
    assert "mesh of all 4 ranks, got one of 1 x 2 = 2; start 2 ranks" in said
    assert "or give sizes whose product is 4" in said
    planning = Planning(group=mesh, cluster=Cluster(1, 8))
    said = choice_refused(lambda: find_replicas(Packing(), planning))
    devices = int(re.search("expected the (.*) devices", said)[1])
    found = find_replicas(Packing(), replace(planning, cluster=Cluster(1, devices)))
    assert found.cluster.num_devices == 4


def mesh_of(ranks):
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("cpu", ranks, mesh_dim_names=("dp", "cp"))


@remedy(
    "raise the budget, or spread rows over all {} ranks with Packing(group='all'), which hold {}",
    "all {} ranks together hold no more in a micro-batch: raise token_budget={}",
    "expected at least one row per micro-batch, got {} usable rows for micro_batches={}",
    "a stream of rows is packed in order: expected shuffle=False and order='in_order'",
    "a stream of rows has no length",
)
def test_budgets_micro_batches_and_orders(tmp_path):
    long = [{"input_ids": list(range(9))}]
    two = {**OPTIONS, "cluster": Cluster(1, 2), "replicas": 2, "token_budget": 8}

    def tokens(rows, **options):
        loader = make_loader(rows, CAUSAL, **{**two, **options})
        return sum(len(data.tokens) for data, _ in loader)

    said = choice_or_row(lambda: tokens(long))
    assert "spread rows over all 2 ranks with Packing(group='all'), which hold 16 tokens" in said
    shares = [tokens(long, group="all", rank=rank) for rank in (0, 1)]
    assert sum(shares) == 9
    assert sum(tokens(long, token_budget=9, rank=rank) for rank in (0, 1)) == 9
    longer = [{"input_ids": list(range(17))}]
    said = choice_or_row(lambda: tokens(longer, group="all"))
    assert "raise token_budget=8, which is that of one of 2 replicas" in said
    assert sum(tokens(longer, group="all", token_budget=9, rank=rank) for rank in (0, 1)) == 17
    said = choice_or_row(lambda: tokens([ROW] * 2, micro_batches=3))
    assert "got 2 usable rows for micro_batches=3; use at most" in said
    most = int(re.search("use at most (.*)$", said)[1])
    assert sum(tokens([ROW] * 2, micro_batches=most, rank=rank) for rank in (0, 1)) == 8
    said = choice_or_row(lambda: tokens(Stream([ROW]), shuffle=True))
    assert "read_dataset(path) or list(rows) gives rows with numbers" in said
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [1, 2, 3, 4]}\n')
    for rows in (list(Stream([ROW])), read_dataset(path)):
        assert trained(rows, shuffle=True) == ALL


def choice_or_row(make):
    with pytest.raises((RunError, DatasetError)) as caught:
        make()
    return str(caught.value)


@remedy(
    "layer {} is linear in one stack of a batch and has a mask in another; pack rows of one stack",
    "the stacks of a batch repeat together after {} layers only, at most {} are planned; pack rows",
)
def test_rows_of_one_stack_share_a_batch():
    long = ", ".join(["m"] * 65)
    spec = Spec.from_text(
        f"mask m = causal\nstack a = linear, m\nstack b = m\nstack c = {long}\n"
        f"stack d = {', '.join(['m'] * 64)}"
    )
    for one, other in ("ab", "cd"):
        stacks = {1: spec.stack(one), 5: spec.stack(other)}
        rows = [ROW, {"input_ids": [5, 6, 7, 8]}]

        def choose(row, stacks=stacks):
            return stacks[int(row["input_ids"][0])]

        assert "pack rows of one stack into a batch" in refused(rows, choose)
        both = [trained([row], choose)[0] for row in rows]  # a loader, and so a batch, for each
        assert both == [row["input_ids"] for row in rows]


@remedy(
    "DCPDataloader cannot be read by workers of torch's DataLoader",
    "another iteration over this DCPDataloader has begun and ended this one",
)
def test_one_iteration_at_a_time_in_this_process():
    def loader():
        return make_loader([ROW, ROW], CAUSAL, **{**ALONE, "token_budget": 4})

    with pytest.raises(RunError, match=r"another iteration .* has begun .*make a loader for each"):
        list(zip(one := loader(), one, strict=True))
    pairs = list(zip(loader(), loader(), strict=True))
    assert [data.rows for pair in pairs for data, _ in pair] == [(0,), (0,), (1,), (1,)]
    alone = DataLoader(loader(), batch_size=None, num_workers=0)
    assert [data.rows for data, _ in alone] == [(0,), (1,)]


@remedy(
    "expected a state of schema {}, as state_dict() gives it",
    "the state was saved with other rows, token_budget, order, shuffle, seed",
    "the state was saved with other {}: expected the hash {}, got {}",
    "the state was saved inside a global batch that was dealt for other ranks",
)
def test_a_state_goes_on_with_the_same_data_set_and_options():
    rows = [{"input_ids": [10 * n, 10 * n + 1]} for n in range(4)]

    def loader(rows=rows, **more):
        return make_loader(rows, CAUSAL, **{**ALONE, "token_budget": 2, "micro_batches": 2, **more})

    first = loader()
    batches = iter(first)
    next(batches)
    inside = first.state_dict()
    next(batches)
    behind = first.state_dict()
    changed = [{"input_ids": [7, 8]}, *rows[1:]]
    for state, other, says in (
        ({}, loader(), "as state_dict"),
        (
            behind,
            loader(token_budget=4),
            "resume with the same data set and options, or start anew",
        ),
        (behind, loader(changed), "start anew with a new loader"),
        (inside, loader(shape=ModelShape(4, 1, 8, 4)), "where LocalData.ends_step is true"),
    ):
        with pytest.raises(RunError, match=re.escape(says)):
            other.load_state_dict(state)
        assert len(list(other)) == len(other)  # anew
    for state, left in ((inside, 3), (behind, 2)):
        again = loader()
        again.load_state_dict(state)
        assert len(list(again)) == left
    elsewhere = loader(shape=ModelShape(4, 1, 8, 4))
    elsewhere.load_state_dict(behind)
    assert len(list(elsewhere)) == 2


# Which sentences there are

PLAIN = (
    "expected epoch, step, row and micro_batch of the state to be counts", "{} of the {} targets",
    "Packing.window=%d: rows move between", "packs are dealt in turn: by work",
    "row {}: expected `{}` to be integers or bytes, got None", "row {} has {} tokens, the token",
    "the data set has no rows; does its path", "expected at least one batch in epoch {}, got none",
    "%s on nothing: %d rows", "policy='skip' has left out %d of the %d rows seen so far",
    "policy='skip' leaves out rows without an error", "token ids from 0, or {} where the loss",
    "column `{}`: expected {} {}, one per token", "numbers that fit into", "no column `{}` for {}",
    "row {} has no tokens", "column `{}` says {} tokens, the row has {}",
    "expected a part of a planned batch, got {} bytes", "the planner's answer cannot be read",
    "the planner cannot be asked", "; the cause is {}", "the batch is planned again here",
    "{}; the batch is placed by {}", "from now on this process plans", "this pool was asked for",
    "parts are cut from whole plans", "streams are packed as they come", "{} in epoch {}, step {}",
    "the begin of epoch {}", "left the loop over its batches", "failed in its data loader",
    "{} rows, {} batches in epoch {}", "rank {} lost the store that brings",
    "rank {} got no plan of batch {}", "Future[",
)  # fmt: skip
"""Sentences that say what happened, what is expected, or where; and pieces of others."""
OF_RANKS = {
    "planner='first': which ranks are one of the {} replicas": "test_plan_sources.py",
    "planner='first': a replica has {} devices": "test_plan_sources.py",
    "planner='first' sends plans through a process group": "test_plan_sources.py",
    "epoch {}, step {}: expected {} rows, for which the first rank": "test_prepared_batches.py",
    "{}: expected rows of {} tokens, for which the first rank": "test_prepared_batches.py",
    "device {} reads other data than device {}": "test_steps.py",
    "rank 0, which plans for all, {}; rank {} goes on": "test_uneven_ranks.py",
}
"""Sentences about ranks, whose ways out other files take, with several ranks."""
OF_TREES = (
    "by_rollout: expected", "expected values that JSON can hold", "group_rows: expected",
    "by={} names the tokens, and row 0 has a column `tokens`", "which trees have: expected plain",
    "expected a name that ends in .parquet or .jsonl", "row {}: expected the columns of row 0",
    "row {}: by= names `{}`: expected", "expected one value for each rollout in `rollout_ends`",
    "are no tree of the {} tokens of the row", "is a tree of rollouts: expected integers",
    "of the tree to continue token", "rollout {}: expected the last token in `rollout_ends`",
    "and give it positions {} and {}", "a mask without branches has a path",
)  # fmt: skip
"""Sentences about trees of rollouts, whose ways out `test_tree_rows.py` takes."""


def test_every_sentence_of_the_loader_is_known():
    fragments = [*KNOWN, *PLAIN, *OF_RANKS, *OF_TREES]
    found = list(sentences())
    assert not [text for text in found if not any(part in text for part in fragments)]
    stale = [part for part in fragments if not any(part in text for text in found)]
    assert not stale
    here = Path(__file__).parent
    assert all((here / name).is_file() for name in OF_RANKS.values())


def sentences():
    """Return the texts of the loader with five words or more, with {} for what they show."""
    for path in Path(dcp_runtime.data.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        passed = set()  # docstrings, and the pieces of formatted texts
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                passed.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                passed.update(node.values)
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
                text = "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if node in passed else node.value
            else:
                continue
            if len(text.split()) >= 5:
                yield text
