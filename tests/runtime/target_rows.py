"""Rows with every column that targets read, their loader, and what they mean token by token."""

from loader_options import make_loader

from dcp_dsl import Sample, Spec, dense_mask
from dcp_planner import Cluster, ModelShape, PlanConfig

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
OPTIONS = {
    "token_budget": 64,
    "block_size": 8,
    "cluster": Cluster(devices_per_node=3),
    "shape": ModelShape(2, 1, 8, 4),
    "config": PlanConfig(partitioner="static:zigzag"),
    "rank": 0,
}
QUESTION = {
    "tokens": [1, 2, 3, 4, 11, 12, 13, 21, 22, 23, 24, 25],
    "question_len": 4,
    "answer_lens": [3, 5],
}


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
