"""What claims are tried on: made-up samples of many shapes, smaller and smaller ones, once each."""

from collections import Counter

from dcp_dsl import Sample, Spec
from dcp_dsl.claims.samples import all_layouts, claim_samples, shrink
from dcp_dsl.errors import Budget, DatasetError

MASKS = {
    "no columns": "mask m = causal",
    "a list": "segment doc = [lens]*  mask m = same(doc)",
    "a number, a list, a rest": "segment s = a[n] b[ms]* tail[..]  mask m = same(b) and k in a",
    "lists of lists": "segment s = doc(a[xs] b[ys]*)*  mask m = same(b)",
    "arithmetic, groups": "segment s = (a[2 * n] b[m - 1]) c[4] d[k // 2]  mask m = same(d)",
    "two layouts": "segment s = a[n] b[ms]*  segment t = x[n] y[ls]*  mask m = same(b) and same(y)",
    "parents": "segment s = a[n] branch b[ms]* from up  mask m = paths",
    "flags, ids": "segment f = flags(a)  segment i = ids(b) as x, y  segment j = ids(c)"
                  "  mask m = k in f and k in x and same(j)",
    "spans, positions": "segment f = spans(a)  segment p = positions(b)  mask m = same(f)",
    "tokens, lists of tokens": "token t  token l[2]  mask m = q.t < 40 and q.t != 70 and k in q.l",
    "numbers of a row": "mask m = q - k < row.n and row.n != 9",
    "values of instances": "segment w = ids(d)  column a in w  mask m = q.w.a > 3",
    "declared ones": "segment doc = [lens]*  mask m = same(doc)  sample a(lens = [5])"
                     "  sample b(lens = [300])  sample c(len = 3)  sample d(lens = [2], len = 9)",
}  # fmt: skip


def counted(values):
    return " ".join(f"{value}:{count}" for value, count in sorted(Counter(values).items()))


def numbers_of(value):
    return [n for item in value for n in numbers_of(item)] if isinstance(value, list) else [value]


def told(samples):
    """Return how often samples have each length, and their columns each size and value."""
    lengths = counted(s.length for s in samples)
    lines = [f"tokens {lengths}"]
    for column in sorted(samples[0].columns):
        values = [s.columns[column] for s in samples]
        if isinstance(values[0], list):
            sizes = counted(map(len, values))
            lines += [f"{column} has {sizes}"] if sizes != lengths else []
            inner = [len(item) for v in values for item in v if isinstance(item, list)]
            lines += [f"{column} inside {counted(inner)}"] if inner else []
        lines.append(f"{column} is {counted(n for v in values for n in numbers_of(v))}")
    return lines


def test_made_up_samples_have_many_shapes_and_every_value(snapshots):
    found = {}
    for name, text in MASKS.items():
        spec = Spec.from_text(text)
        mask, broken = spec.mask("m"), frozenset({"d"})
        closed, open_ = (
            list(claim_samples(mask, None, spec.scope, broken, Budget(2**30), with_open=flag))
            for flag in (False, True)
        )
        assert closed in ([], open_)
        lines = [text, f"{len(open_)} samples, {len(closed)} without columns of any integer"]
        found[name] = "\n".join([*lines, *told(open_)])
    snapshots.check("trials", found)


STEPS = {
    "a column per token": (
        "segment f = flags(marks)  mask m = same(f)", {"marks": [1, 0, 1, 1, 1]}, 5,
        lambda s: sum(s.columns["marks"]) > 1,
    ),
    "no columns": ("mask m = causal", {}, 11, lambda s: s.length >= 3),
    "numbers": ("mask m = q - k < row.n", {"n": 9, "m": -3}, 1, lambda s: s.columns["n"] > 3),
    "lists of a layout": (
        "segment d = x[n] doc[lens]*  mask m = same(doc)", {"lens": [3, 0, 4], "n": 2}, 9,
        lambda s: s.length > 4 and len(s.columns["lens"]) > 1,
    ),
    "lists of lists": (
        "segment s = doc(a[xs] b[ys]*)*  mask m = same(b)",
        {"xs": [1, 2], "ys": [[2, 1], [3]]}, 9,
        lambda s: [] not in s.columns["ys"] and s.length > 2,
    ),
    "a layout and a column per token": (
        "segment doc = [lens]*  token t  mask m = q.t == k.t and same(doc)",
        {"lens": [2, 1], "t": [5, 0, 7]}, 3, lambda s: 7 in s.columns["t"],
    ),
}  # fmt: skip


def test_a_sample_shrinks_step_by_step_as_long_as_its_fault_stays(snapshots):
    found = {}
    for name, (text, columns, length, is_faulty) in STEPS.items():
        spec = Spec.from_text(text)
        mask, tried = spec.mask("m"), []

        def search(sample, mask=mask, tried=tried, is_faulty=is_faulty):
            try:
                mask.compile(sample)
                fault = is_faulty(sample) or None
            except DatasetError:
                fault = False
            tried.append(f"{sample.to_json()} {'!' if fault else '' if fault is None else 'unfit'}")
            return sample if fault else None

        first = Sample(columns, length)
        per_token = [name for name in ("marks", "t") if name in columns]
        last = shrink(first, first, search, per_token, all_layouts(mask, spec.scope))
        found[name] = "\n".join([text, first.to_json(), *map(str.strip, tried), last.to_json()])
    snapshots.check("trials_smaller", found)


def test_shrinking_ends_after_as_many_tries_as_are_allowed():
    tried = []
    first = Sample({}, 10**6)
    last = shrink(first, first, lambda s: tried.append(s) or s, [], [])
    assert last.length == 0
    tried.clear()
    first = Sample({"a": [1] * 500}, 500)
    assert shrink(first, first, lambda s: tried.append(s), ["a"], []) is first
    assert len(tried) == 400
