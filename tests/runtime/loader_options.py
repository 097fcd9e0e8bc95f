"""Loaders, with options by name; their rows, and what these mean token by token."""

from dataclasses import fields
from itertools import accumulate

from dcp_dsl import Sample, Spec, dense_mask
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime import DCPDataloader, LookAhead, Packing, Planning, RowRules

POLICIES = {
    "work": {},
    "order": {"balance": "order"},
    "all": {"group": "all"},
    "best": {"group": "best"},
    "per_document": {"width": "per_document"},
    "window": {"window": 2},
}
"""Ways to deal rows to replicas and micro-batches, by name."""


class Stream:
    """Rows that can be iterated again and have neither length nor numbers."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows)


def make_loader(dataset, mask_fn, *, ahead=2, processes=0, planner="each", **options):
    """Make a loader; `ahead` is `LookAhead.batches`, the other names are those of the groups.

    `group` is `Packing.group` where it is a text, else `Planning.group`, as `mesh` always is.
    """
    groups = []
    for group in (Packing, RowRules, Planning):
        names = {field.name for field in fields(group)} & options.keys()
        if group is Packing and not isinstance(options.get("group"), str):
            names -= {"group"}
        given = {name: options.pop(name) for name in names}
        if group is Planning and "mesh" in options:
            given["group"] = options.pop("mesh")
        groups.append(group(**given))
    assert not options, f"no group has {sorted(options)}"
    packing, rows, planning = groups
    look_ahead = LookAhead(ahead, processes, planner)
    return DCPDataloader(
        dataset, mask_fn, packing, rows=rows, planning=planning, look_ahead=look_ahead
    )


SPEC = Spec.from_text("""
segment part = question[question_len] answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
mask plain = causal
mask dilated = causal and (q - k) % 2 == 0
mask own = causal and same(answer) or causal and q in question and k in question
mask far = causal and (k == q or q - k >= 2)
stack layers = 2 of shared, own
stack helped = shared, plain
stack apart = dilated, far
""")
ONE = Cluster(1, 1)
SMALL = {
    "token_budget": 64,
    "block_size": 8,
    "shape": ModelShape(2, 1, 8, 4),
    "config": PlanConfig(partitioner="static:zigzag"),
}
"""Options of small loaders, for the ranks that there are."""
OPTIONS = {**SMALL, "cluster": Cluster(devices_per_node=3), "rank": 0}
QUESTION = {
    "tokens": [1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 24, 25],
    "question_len": 4,
    "answer_lens": [3, 5],
}


def rows_of(lengths):
    """Tokens that say which row and position they are."""
    return [{"tokens": [1000 * row + i for i in range(n)]} for row, n in enumerate(lengths)]


def loader_of(rows, mask="shared", **options):
    value = SPEC.stack(mask) if mask in SPEC.stacks else SPEC.mask(mask)
    return make_loader(rows, value, **{**OPTIONS, **options})


def data_of(rows, mask="shared", **options):
    ((data, _),) = loader_of(rows, mask, cluster=ONE, **options)
    return data


def random_row(rng):
    """A row with every column there is; the mask of its loss and its labels agree."""
    question, answers = rng.randint(1, 6), [rng.randint(1, 5) for _ in range(rng.randint(0, 3))]
    n = question + sum(answers)
    tokens = [rng.randint(0, 99) for _ in range(n)]
    labels = [rng.choice([-100, token, rng.randint(0, 99)]) for token in tokens]
    return {
        "tokens": tokens,
        "question_len": question,
        "answer_lens": answers,
        "targets": labels,
        "counted": [int(label != -100) for label in labels],
        "at": [rng.randint(0, 9) for _ in range(n)],
        "advantages": [rng.uniform(-1, 1) for _ in range(n)],
        "kinds": [rng.randint(0, 3) for _ in range(n)],
    }


def oracle(row, masks, columns, *, keep):
    """Return for every token what it is to predict, ``None`` for nothing, pair by pair."""
    n = len(row["tokens"])
    seen = []
    for mask in masks:
        sample = Sample({name: row[name] for name in mask.columns}, n)
        seen.append(dense_mask(mask, sample))
    found = []
    for q in range(n):
        target = None
        if q + 1 < n and (keep or any(bool(dense[q + 1][q]) for dense in seen)):
            target = row["targets"][q + 1] if "labels" in columns else row["tokens"][q + 1]
            if "labels" in columns and target == -100:
                target = None
            if "loss" in columns and row["counted"][q + 1] == 0:
                target = None
        found.append(target)
    return found


def joined(documents):
    return [token for document in documents for token in document]


def lengths(documents):
    return [len(document) for document in documents]


def ends(documents):
    return list(accumulate(lengths(documents)))


def positions(documents, first=0):
    return [at + first for document in documents for at in range(len(document))]


def numbers(documents, first=1):
    return [number for number, own in enumerate(documents, start=first) for _ in own]


PACKERS = {
    "TRL": lambda docs: {"seq_lengths": lengths(docs)},
    "TRL, before": lambda docs: {"position_ids": positions(docs)},
    "LLaMA-Factory": lambda docs: {
        "attention_mask": numbers(docs), "position_ids": positions(docs),
    },
    "axolotl": lambda docs: {"attention_mask": numbers(docs), "length": sum(lengths(docs))},
    "torchtitan": lambda docs: {"positions": positions(docs)},
    "torchtune": lambda docs: {"input_pos": positions(docs), "seq_lens": lengths(docs)},
    "tunix": lambda docs: {"segment_ids": numbers(docs), "segment_positions": positions(docs)},
    "MaxText": lambda docs: {
        "inputs_segmentation": numbers(docs), "inputs_position": positions(docs),
    },
    "T5X": lambda docs: {
        "decoder_segment_ids": numbers(docs), "decoder_positions": positions(docs),
    },
    "NeMo": lambda docs: {"seq_start_id": [0, *ends(docs)[:-1]]},
    "NeMo, padded": lambda docs: {"cu_seqlens": [0, *ends(docs), -1, -1]},
    "DataCollatorWithFlattening": lambda docs: {
        "position_ids": [positions(docs)], "seq_idx": [numbers(docs, 0)],
        "cu_seq_lens_q": [0, *ends(docs)], "cu_seq_lens_k": [[0, *ends(docs)]],
    },
    "verl": lambda docs: {"position_ids": positions(docs), "attention_mask": [1] * ends(docs)[-1]},
    "Qwen-VL": lambda docs: {"position_ids": [positions(docs)] * 3},
    "OLMo": lambda docs: {"doc_lens": lengths(docs), "max_doc_lens": max(lengths(docs))},
    "llm-foundry": lambda docs: {"sequence_id": numbers(docs, 0)},
    "open-instruct": lambda docs: {"attention_masks": numbers(docs)},
    "others": lambda docs: {
        "document_ids": [7 * n for n in numbers(docs)], "cu_doc_lens": [0, *ends(docs)],
        "packed_seq_ids": numbers(docs), "sequence_boundaries": ends(docs)[:-1],
    },
}  # fmt: skip
"""Columns in which each tool states packed documents."""
SAY_NOTHING = {"length", "max_doc_lens"}


def separate(documents, counted=None, *, counts_on=False):
    """Return tokens, positions and (predicting token, id) of documents trained one by one.

    `counted` says of each token whether it is a target; `counts_on`: positions do not begin anew.
    """
    tokens, places, targets = [], [], []
    for document in documents:
        for at, token in enumerate(document):
            place = len(tokens)
            if at and (counted is None or counted[place]):
                targets.append((place - 1, token))
            tokens.append(token)
            places.append(place if counts_on else at)
    return tokens, places, targets


def trained(rows, mask="mask docs = causal", name="docs", **options):
    """Return the same of what a loader gives for rows of one batch, on one rank."""
    value = Spec.from_text(mask).mask(name) if isinstance(mask, str) else mask
    ((data, _),) = make_loader(rows, value, **{**OPTIONS, "cluster": ONE, **options})
    targets = zip(data.target_rows.tolist(), data.target_ids.tolist(), strict=True)
    return data.tokens.tolist(), data.position_ids.tolist(), sorted(targets)
