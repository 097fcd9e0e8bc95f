"""Whole epochs of small loaders as texts; whatever one row does wrong, in every data set."""

import json
import re
import warnings
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from loader_options import ONE, OPTIONS, Stream, make_loader
from torch.utils.data import DataLoader

from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import RunError, StackedPlans
from dcp_runtime.plans.batch_plans import batch_note

SPEC = Spec.from_text("""
segment part = question[question_len] answer[answer_lens]*
segment tree = prompt[question_len] branch reply[answer_lens]*
mask shared = causal and (k in question or same(answer))
mask band(w: tokens = 3) = causal and q - k < w
mask far = causal and (k == q or q - k >= 2)
mask paths_of = paths(tree)
stack layers = linear, 2 of shared, band
for "a/*" use layers
for "b/*" having answer_lens use paths_of
""")
OTHERS = Spec.from_text("""
segment seq = doc[lens]*
segment open = part[parts] tail[..]
segment cache = past[past_len] chunk[chunk_len]
segment a = branch [m]*
segment b = branch [n]*
mask same_doc = causal and same(seq)
mask same_part = same(part)
@keys(cache, bottom_right) mask cached = causal
stack mixed = 1 of causal, cached
stack branched = paths(a), paths(b)
for "cached" use cached
for "mixed" use mixed
""")
SHAPE = ModelShape(2, 1, 8, 4)


def row_of(number, question, *answers):
    tokens = [10 * number + i for i in range(question + sum(answers))]
    return {
        "tokens": tokens, "question_len": question, "answer_lens": list(answers),
        "gold": [-100] * question + tokens[question:],
        "counted": [int(i >= question) for i in range(len(tokens))],
        "at": [i % 5 for i in range(len(tokens))],
        "reward": [number + i / 4 for i in range(len(tokens))],
        "id": f"row-{number}",
    }  # fmt: skip


ROWS = [
    row_of(0, 2, 2, 1), row_of(1, 1, 3), row_of(2, 3, 1, 1, 1), row_of(3, 1), row_of(4, 4, 2),
    row_of(5, 2, 1, 3),
]  # fmt: skip
BAD = [
    ROWS[0], {**ROWS[1], "tokens": []}, {**ROWS[2], "tokens": list(range(30))},
    {**ROWS[4], "answer_lens": [9]}, {**ROWS[5], "at": [1]}, ROWS[3],
]  # fmt: skip
BAND, SHARED = SPEC.mask("band"), SPEC.mask("shared")
LOADERS = {
    "three ranks, packs in order": (ROWS, BAND, {"ranks": 3}),
    "one rank, a stack with a linear layer": (
        ROWS, SPEC, {"path": "a/x.jsonl", "token_budget": 20},
    ),
    "branches, once and per path": (
        ROWS[:3], SPEC,
        {"path": "b/x.jsonl", "shared_targets": "per_path", "extra_columns": ("reward", "at")},
    ),
    "columns of every kind": (
        ROWS, SHARED,
        {"ranks": 2, "labels_column": "gold", "loss_column": "counted", "position_column": "at",
         "extra_columns": ("counted", "reward")},
    ),
    "hidden targets are kept": (ROWS[:2], SPEC.mask("far"), {"hidden_targets": "keep"}),
    "decreasing, shuffled, the last left out": (
        ROWS, BAND,
        {"order": "decreasing", "shuffle": True, "seed": 7, "drop_last": True, "epochs": 2},
    ),
    "a stream, shuffled never": (
        Stream(ROWS), SPEC.mask("band(w = 2)"), {"drop_last": True, "token_budget": 10},
    ),
    "bad rows are skipped": (
        BAD, SHARED, {"policy": "skip", "position_column": "at", "epochs": 2},
    ),
    "long rows are cut": (ROWS, SHARED, {"policy": "truncate", "token_budget": 5, "ranks": 2}),
    "two replicas by work, two micro-batches": (
        ROWS, BAND, {"ranks": 4, "replicas": 2, "micro_batches": 2, "token_budget": 8},
    ),
    "two replicas in turn": (
        ROWS, BAND, {"ranks": 2, "replicas": 2, "balance": "order", "token_budget": 9},
    ),
    "all ranks share, by documents": (
        ROWS, SPEC.stack("layers"),
        {"ranks": 4, "replicas": 2, "width": "per_document", "token_budget": 14},
    ),
    "the best of both, in windows": (
        ROWS, BAND, {"ranks": 2, "replicas": 2, "group": "best", "window": 2, "token_budget": 9},
    ),
    "head groups": (
        ROWS[:2], BAND,
        {"ranks": 2, "shape": ModelShape(4, 2, 8, 4),
         "config": PlanConfig("static:zigzag", head_groups=2)},
    ),
}  # fmt: skip


def epoch_text(loaders):
    """Return what the loaders of all ranks give: the rows, the plans, each rank's tokens."""
    lines = (
        [f"micro-batches: {len(loaders[0])}"] if loaders[0]._packer.usable_rows is not None else []
    )
    for parts in zip(*loaders, strict=True):
        firsts = {}  # replicas that share a micro-batch have one plan
        for rank, (data, plan) in enumerate(parts):
            first = rank // plan.num_devices * plan.num_devices
            if first not in firsts:
                firsts[first] = None
                lines += [batch_line(data, plan), *map(plan_line, plans_of(plan))]
                lines += [f"  note {note_text(plan)}"]
            lines += [f"  rank {rank}: {text}" for text in data_lines(data)]
        state = loaders[-1].state_dict()
        named = {name: state[name] for name in ("epoch", "step", "row", "micro_batch")}
        lines.append(f"  state {' '.join(map(str, named.values()))}{' +' * ('dealing' in state)}")
    return lines


def batch_line(data, plan):
    end = ", ends the step" if data.ends_step else ""
    cycle = f", cycle {plan.cycle}" if isinstance(plan, StackedPlans) else ""
    return (
        f"{batch_note(plan).name}: rows {data.rows}, {plan.num_tokens} tokens on "
        f"{plan.num_devices}, {data.num_targets} targets, micro-batch {data.micro_batch} of "
        f"{data.micro_batches}{end}{cycle}"
    )


def plans_of(plan):
    return plan.plans if isinstance(plan, StackedPlans) else (plan,)


def plan_line(plan):
    tiles = [int(plan.tiles.pairs[plan.tiles.device == d].sum()) for d in range(plan.num_devices)]
    told = plan.provenance
    mask = told and f"{told.mask} of {told.origin!r}, {len(told.samples)} samples"
    return (
        f"  plan: sequences {plan.cu_seqlens.tolist()}, owners {plan.blocks.owner.tolist()}, "
        f"pairs {tiles}, {mask}, {', '.join(plan.sequence_names)}"
    )


def note_text(plan):
    note, found = batch_note(plan), []
    for facts in note.plans:
        *counts, predicted = facts
        numbers = [*counts.pop(0), *counts]  # bytes forward and backward, work, tokens
        found.append("/".join(f"{x:.4g}" for x in (*numbers, *predicted)))
    counts = [f"{name} {note.facts[name]}" for name in ("queued", "lost", "skipped")]
    return ", ".join([*found, *counts])


def data_lines(data):
    """Return tensors of a rank; those of its targets are `row:id` with their weight, if not 1."""
    yield (
        f"tokens {data.tokens.tolist()} at {data.position_ids.tolist()} of "
        f"{data.sequence_ids.tolist()}"
    )
    targets = zip(
        data.target_rows.tolist(), data.target_ids.tolist(), data.target_weights, strict=True
    )
    shown = [
        f"{row}:{token}" + f"x{weight:g}" * bool(weight != 1) for row, token, weight in targets
    ]
    assert data.loss_mask.tolist() == [label != -100 for label in data.labels.tolist()]
    yield f"labels {data.labels.tolist()} targets {' '.join(shown)}"
    for name, values in data.extra.items():
        kind = str(values.dtype).removeprefix("torch.")
        yield f"{name} {kind} {values.tolist()} -> {data.target_extra[name].tolist()}"


def test_every_batch_of_every_rank_is_kept(snapshots, caplog):
    texts = {}
    for title, (rows, mask_fn, options) in LOADERS.items():
        caplog.clear()
        options = {"token_budget": 16, "config": PlanConfig("static:zigzag"), **options}
        options.setdefault("unchecked_columns", ("gold",))  # read by one of the cases alone
        ranks, epochs = options.pop("ranks", 1), options.pop("epochs", 1)
        given = {"block_size": 2, "shape": SHAPE, "cluster": Cluster(1, ranks), **options}
        loaders = [make_loader(rows, mask_fn, rank=rank, **given) for rank in range(ranks)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lines = [line for _ in range(epochs) for line in epoch_text(loaders)]
        found = loaders[0].screening
        lines.append(f"left out {found.counts}, {found.hidden_targets} hidden targets")
        said = (*found.examples, *caplog.messages, *(str(each.message) for each in caught))
        lines += [f"  {text}" for text in said]
        texts[title] = "\n".join(lines)
    snapshots.check("loader", texts)


ROW, LONG = {"tokens": [1, 2, 3]}, {"tokens": list(range(17))}
CACHED = {"tokens": [1, 2], "past_len": 1, "chunk_len": 2}
REFUSED = {
    "no such column of tokens": ([{"text": b"abc"}], BAND, {"token_column": "txt"}),
    **{
        f"tokens {tokens!r}": ([ROW, {"tokens": tokens}], BAND, {})
        for tokens in ([[1, 2], [3, 4]], [2**70], [True])
    },
    "a batch": ([{"tokens": torch.ones(2, 3, dtype=torch.int64)}], BAND, {}),
    "a batch is no row to skip": ([{"tokens": [[1, 2], [3, 4]]}], BAND, {"policy": "skip"}),
    "a text as row": (["a"], BAND, {}),
    "a file": ("a.jsonl", BAND, {}),
    "a number": (3, BAND, {}),
    "batches of torch that would pass for rows": (
        DataLoader([ROW] * 6, batch_size=3, collate_fn=lambda rows: rows[0]), BAND, {},
    ),
    "sampled batches of torch": (DataLoader([ROW] * 6, batch_sampler=[[0, 1], [2, 3]]), BAND, {}),
    "a long row": ([ROW, LONG], BAND, {}),
    "a long row, replicas": ([LONG], BAND, {"ranks": 3, "replicas": 3}),
    "a long row for all ranks": (
        [{"tokens": list(range(49))}], BAND, {"ranks": 3, "replicas": 3, "group": "all"},
    ),
    "no column of labels": ([ROW], BAND, {"labels_column": "gold"}),
    "a short column of the loss": ([{**ROW, "loss": [1]}], BAND, {"loss_column": "loss"}),
    "a stream, shuffled": (Stream([ROW]), BAND, {"shuffle": True}),
    "no mask": ([ROW], None, {}),
    "a name as mask": ([ROW], "band", {}),
    "a function that gives no mask": ([ROW], lambda row: "causal", {}),
    "a path without a mask": ([ROW], SPEC, {"path": "code/x.jsonl"}),
    "a second row that does not fit": (
        [{**ROW, "parts": 1}, {**ROW, "parts": 9}], OTHERS.mask("same_part"), {},
    ),
    "a layout that is another": ([{**ROW, "lens": [1, 1]}], OTHERS.mask("same_doc"), {}),
    "two layouts with branches": (
        [{**ROW, "m": [2, 1], "n": [1, 2]}], OTHERS.stack("branched"), {},
    ),
    "keys of another sequence": ([CACHED], OTHERS.mask("cached"), {}),
    "keys of another sequence, attached": ([CACHED], OTHERS, {"path": "cached"}),
    "keys of another sequence in a stack": ([CACHED], OTHERS.stack("mixed"), {}),
    "keys of another sequence in a stack, attached": ([CACHED], OTHERS, {"path": "mixed"}),
}  # fmt: skip


def test_what_cannot_be_loaded_is_refused_in_words(snapshots):
    texts = {}
    for title, (rows, mask_fn, options) in REFUSED.items():
        cluster, options = Cluster(1, options.get("ranks", 1)), {**options}
        options.pop("ranks", None)
        given = {"token_budget": 16, "block_size": 2, "shape": SHAPE, "cluster": cluster, **options}
        when = "made"
        with pytest.raises((DatasetError, RunError)) as caught:  # noqa: PT012
            loader = make_loader(rows, mask_fn, rank=0, **given)
            when = "iterated"
            next(iter(loader))
        texts[title] = f"{when}: {caught.type.__name__}: {caught.value}"
    snapshots.check("loader_refusals", texts)
    with pytest.raises(TypeError, match="a stream of rows has no length"):
        len(make_loader(Stream([ROW]), BAND, rank=0))


MASK = Spec.from_text("segment doc = [lens]*  mask docs = causal per doc").mask("docs")
RULES = {
    "loss_column": "counted", "position_column": "at", "extra_columns": ("x", "n"),
    "hidden_targets": "leave_out",
}  # fmt: skip


def good(first):
    return {
        "input_ids": [first, first + 1, first + 2], "lens": [2, 1], "at": [0, 1, 0],
        "labels": [first, first + 1, -100], "counted": [1, 1, 0], "x": [0.5, 1.0, 2.0],
        "n": [1, 2, 3], "length": 3,
    }  # fmt: skip


def changed(**columns):
    return {**good(20), **columns}


def without(*names):
    return {name: value for name, value in good(20).items() if name not in names}


MANY = [*range(300)]  # longer than all budgets here
TABLES = {"jsonl", "parquet", "hugging face", "hugging face, streamed"}
FAULTS = {  # the row, the reason, where it cannot occur
    "a row that is None": (None, "unfit", TABLES),
    "a row without names": ([1, 2], "unfit", TABLES),
    "no column of tokens": (without("input_ids"), "unfit", TABLES),
    "tokens that are None": (changed(input_ids=None), "unfit", ()),
    "tokens that hold None": (changed(input_ids=[1, None, 2]), "unfit", ()),
    "tokens that are a text": (changed(input_ids="abc"), "unfit", TABLES),
    "tokens that are floats": (changed(input_ids=[1.5, 2.5, 3.0]), "unfit", TABLES),
    "tokens of unequal lists": (changed(input_ids=[[1], [2, 3]]), "unfit", TABLES),
    "one token": (changed(input_ids=5), "unfit", TABLES),
    "a negative token": (changed(input_ids=[1, -1, 2]), "unfit", ()),
    "a token beyond int64": (changed(input_ids=[1, 2**63, 2]), "unfit", TABLES),
    "an unsigned token beyond int64": (
        changed(input_ids=np.array([1, 2**63, 2], np.uint64)), "unfit", TABLES,
    ),
    "no tokens": (changed(input_ids=[], length=0), "empty", ()),
    "too many tokens": (
        changed(
            input_ids=MANY, lens=[300], at=MANY, labels=MANY, counted=[1] * 300, x=[0.5] * 300,
            n=MANY, length=300,
        ), "too_long", (),
    ),
    "two columns of tokens": (changed(tokens=[7, 8]), "unfit", TABLES),
    "two columns of as many tokens": (changed(tokens=[7, 8, 9]), "unfit", TABLES),
    "another length": (changed(length=4), "unfit", ()),
    "labels of None": (changed(labels=None), "unfit", ()),
    "labels that hold None": (changed(labels=[1, None, 2]), "unfit", ()),
    "few labels": (changed(labels=[1, 2]), "unfit", ()),
    "labels below 0": (changed(labels=[1, -1, -100]), "unfit", ()),
    "labels that are floats": (changed(labels=[1.0, 2.0, 3.0]), "unfit", TABLES),
    "labels of lists": (changed(labels=[[1]] * 3), "unfit", TABLES),
    "one label": (changed(labels=1), "unfit", TABLES),
    "labels that are a text": (changed(labels="abc"), "unfit", TABLES),
    "labels and loss that contradict each other": (changed(labels=[1, 2, 3]), "unfit", ()),
    "a loss of None": (changed(counted=None), "unfit", ()),
    "a loss of other numbers": (changed(counted=[1, 2, 0]), "unfit", ()),
    "no column of the loss": (without("counted"), "unfit", TABLES),
    "positions that hold None": (changed(at=[0, None, 0]), "unfit", ()),
    "positions below 0": (changed(at=[0, -1, 0]), "unfit", ()),
    "few positions": (changed(at=[0, 1]), "unfit", ()),
    "positions that are floats": (changed(at=[0.5] * 3), "unfit", TABLES),
    "positions that are truths": (changed(at=[True] * 3), "unfit", TABLES),
    "positions of None": (changed(at=None), "unfit", ()),
    "positions that are a text": (changed(at="abc"), "unfit", TABLES),
    "no column of positions": (without("at"), "unfit", TABLES),
    "an extra column of None": (changed(x=None), "unfit", ()),
    "an extra column that holds None": (changed(x=[0.5, None, 1.0]), "unfit", ()),
    "a short extra column": (changed(x=[0.5]), "unfit", ()),
    "an extra column of lists": (changed(x=[[1.0]] * 3), "unfit", TABLES),
    "an extra column of unequal lists": (changed(x=[[1.0], [1, 2], [3]]), "unfit", TABLES),
    "one extra number": (changed(x=0.5), "unfit", TABLES),
    "an extra column that is a text": (changed(x="abc"), "unfit", TABLES),
    "an extra tensor of a type that no array has": (
        changed(x=torch.ones(3, dtype=torch.bfloat16)), "unfit", TABLES,
    ),
    "an extra unsigned integer beyond int64": (
        changed(x=np.array([2**63, 0, 0], np.uint64)), "unfit", TABLES,
    ),
    "an extra integer beyond all": (changed(x=[2**70, 0, 0]), "unfit", TABLES),
    "an extra number beyond float32": (changed(x=[0.5, 1e300, 1.0]), "unfit", ()),
    "an extra integer beyond int64": (changed(n=[1, 2**63, 2]), "unfit", TABLES),
    "an extra integer that float32 changes": (changed(x=[0.5, 2**24 + 1, 2]), "unfit", TABLES),
    "no extra column": (without("x"), "unfit", TABLES),
    "a mask's column of None": (changed(lens=None), "unfit", ()),
    "a mask's column that holds None": (changed(lens=[2, None]), "unfit", ()),
    "lengths of another sum": (changed(lens=[2, 2]), "unfit", ()),
    "lengths below 0": (changed(lens=[4, -1]), "unfit", ()),
    "no column of the mask": (without("lens"), "unfit", TABLES),
}  # fmt: skip
KINDS = ("list", "stream", "jsonl", "parquet", "hugging face", "hugging face, streamed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


def opened(rows, kind, path):
    if kind == "list":
        return rows
    if kind == "stream":
        return Stream(rows)
    if kind == "jsonl":
        path.with_suffix(".jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_dataset(path.with_suffix(".jsonl"))
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
        return read_dataset(path.with_suffix(".parquet"))
    datasets = pytest.importorskip("datasets", exc_type=ImportError)
    found = datasets.Dataset.from_list(rows)
    return found.to_iterable_dataset() if "streamed" in kind else found


def run(dataset, policy, token_budget=16):
    options = {**OPTIONS, "cluster": ONE, **RULES, "token_budget": token_budget}
    loader = make_loader(dataset, MASK, **options, policy=policy)
    tokens = [token for data, _ in loader for token in data.tokens.tolist()]
    return tokens, loader.screening.counts


def test_what_is_said_of_a_bad_row(snapshots):
    texts = {}
    for title, (bad, _, _) in FAULTS.items():
        with pytest.raises(DatasetError) as caught:
            run([good(10), bad], "error")
        texts[title] = str(caught.value)
    snapshots.check("row_faults", texts)


@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_are_left_out_and_counted_by_reason(kind, folder):
    rows, wanted = [], []
    faults = [fault for fault in FAULTS.values() if kind not in fault[2]]
    for number, (bad, _, _) in enumerate(faults):
        first = 100 + 10 * number
        rows += [good(first), bad]
        wanted += [first, first + 1, first + 2]
    dataset = opened(rows, kind, folder / "all")
    counts = dict(Counter(reason for _, reason, _ in faults))
    assert run(dataset, "skip", token_budget=16 * 16) == (wanted, counts)
    alone = opened([bad for bad, _, _ in faults], kind, folder / "bad")
    says = rf"policy='skip' left out {len(faults)} of {len(faults)} rows; the first: row 0\b|row 0 "
    with pytest.raises(DatasetError, match=says):  # a fault of all rows is never swallowed
        run(alone, "skip")


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_row_is_named_under_other_policies(kind, folder):
    for title, (bad, reason, impossible) in FAULTS.items():
        if kind in impossible:
            continue
        dataset = opened([good(10), bad, good(30)], kind, folder / "rows")
        for policy in ("error", "truncate") if kind == "list" else ("error",):
            if (policy, reason) == ("truncate", "too_long"):
                cut = [10, 11, 12, *MANY[:16], 30, 31, 32]
                assert run(dataset, policy, token_budget=16) == (cut, {"too_long": 1})
                continue
            with pytest.raises(DatasetError) as caught:
                run(dataset, policy)
            assert re.search(r"row 1\b.*policy='skip'", str(caught.value)), title
