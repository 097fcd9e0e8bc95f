"""Draw rows that fit a spec, or do not by one fault or by several: checker and loader agree.

`dcpm check --dataset` decides a file at once; the loader makes a sample of each row, compiles its
masks and asks the guard. Both have to take the same rows; where a row has one fault, they have to
name the same kind of fault. `python tests/fuzz/row_fuzz.py --count 100000 --json FILE`.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from dcp_dsl import DatasetError, Spec, SpecError, read_dataset
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_dsl.specs.attachment import Attachment

ROWS_OF_A_FILE = 100
Row = dict[str, Any]
ODD = (-1, -5, 2**31, 2**62, 2**63, 2**64 - 1)


@dataclass(frozen=True)
class Kind:
    """A spec, how to draw the columns of a row that fits it, and how many tokens these have."""

    text: str
    draw: Callable[[random.Random], Row]
    tokens: Callable[[Row], int | None]


def some(rng: random.Random, most: int = 6) -> list[int]:
    return [rng.randrange(most) for _ in range(rng.randrange(4))]


def two(first: str, second: str) -> Callable[[random.Random], Row]:
    return lambda rng: {first: rng.randrange(6), second: rng.randrange(6)}


def add(row: Row) -> int:
    """Add up all numbers of all columns."""

    def total(value: object) -> int:
        return sum(map(total, value)) if isinstance(value, list) else int(str(value))

    return sum(map(total, row.values()))


def rollouts(rng: random.Random) -> Row:
    prompts = [rng.randrange(4) for _ in range(rng.randrange(4))]
    return {"prompt_lens": prompts, "rollout_lens": [some(rng) for _ in prompts]}


def evictions(rng: random.Random) -> Row:
    length = rng.randrange(9)
    return {"evict": [rng.randrange(length + 2) for _ in range(length)]}


PARTS = 'segment part = a[a_len] b[b_len]\nfor "*" use m\n'
DOCS = "segment doc = [doc_lens]*\n"
KINDS = (
    Kind(
        "segment part = question[question_len] answer[answer_lens]*\n"
        'mask m = causal and (k in question or same(answer))\nfor "*" use m',
        lambda rng: {"question_len": rng.randrange(6), "answer_lens": some(rng)},
        add,
    ),
    Kind(
        DOCS + 'mask m(window: tokens = 3) = causal and same(doc) and q - k < window\n'
        'for "*" use m(5) with doc_lens = parts',
        lambda rng: {"parts": some(rng)},
        add,
    ),
    Kind(
        'segment part = a[a_len] b[..]\nmask m = causal and (k in a or same(b))\nfor "*" use m',
        lambda rng: {"a_len": rng.randrange(6)},
        lambda row: None,
    ),
    Kind(
        "segment grp = group(prompt[prompt_lens] rollout[rollout_lens]*)*\n"
        "mask m = causal and same(group) and (k in prompt or same(rollout))\n"
        'for "*" use m',
        rollouts,
        add,
    ),
    Kind(
        'token evict\nmask m = causal and q < k.evict\nfor "*" use m',
        evictions,
        lambda row: len(row["evict"]),
    ),
    Kind(PARTS + "mask m = causal or k in a", two("a_len", "b_len"), add),
    Kind(PARTS + "mask m = causal and k in a", two("a_len", "b_len"), add),
    Kind('mask m = causal and q - k < row.w\nfor "*" use m',
         lambda rng: {"w": rng.randrange(-1, 9)}, lambda row: None),
    Kind("segment part = noisy[len // 2] clean[q]\n"
         'mask m = causal and same(part) or q == k\nfor "*" use m',
         lambda rng: {"q": rng.randrange(6)}, lambda row: 2 * row["q"]),
    Kind(DOCS + "stack s = heads { 0..1: causal per doc rest: causal }\n"
         'for "*" use s', lambda rng: {"doc_lens": some(rng)}, add),
)  # fmt: skip


def break_row(row: Row, rng: random.Random) -> str:
    """Break a row in one way; return its name."""
    columns = [name for name in row if name not in ("length", "tokens")]
    name = rng.choice(columns)
    match rng.choice(("missing", "length", "size", "missing inside")):
        case "missing":
            row[name] = None
            return "missing"
        case "length" if "length" in row:
            row["length"] += rng.choice((1, 2))
            return "length"
        case "size" if name != "evict":
            bad = rng.choice((-1, -3))
            place = row[name]
            while isinstance(place, list) and place and isinstance(place[0], list):
                place = place[0]
            if isinstance(place, list):
                place.append(bad)
            else:
                row[name] = bad
            return "size"
        case "missing inside" if isinstance(row[name], list) and row[name]:
            row[name][rng.randrange(len(row[name]))] = None
            return "missing"
    return ""


def spoil(row: Row, rng: random.Random) -> None:
    """Put odd numbers anywhere."""
    for name, value in row.items():
        if isinstance(value, int) and rng.random() < 0.3:
            row[name] = rng.choice(ODD)
        is_flat = isinstance(value, list) and value and not isinstance(value[0], list)
        if is_flat and name != "tokens" and rng.random() < 0.3:
            value[rng.randrange(len(value))] = rng.choice(ODD)


def draw(kind: Kind, rng: random.Random, says: tuple[bool, bool]) -> tuple[Row, str]:
    """Draw a row and the name of its fault: empty for none, `many` where it may have several."""
    row = kind.draw(rng)
    tokens = kind.tokens(row)
    has_length, has_tokens = says
    has_length |= bool({"evict", "q"} & row.keys()) and not has_tokens  # no layout says it
    if tokens is None:
        tokens, has_length = max(0, sum(row.values())) + rng.randrange(5), True
    if has_length:
        row["length"] = tokens
    if has_tokens:
        row["tokens"] = list(range(tokens))
    match rng.randrange(6):
        case 0 | 1:
            return row, break_row(row, rng)
        case 2:
            spoil(row, rng)
            return row, "many"
    return row, ""


def draw_file(kind: Kind, rng: random.Random, count: int) -> tuple[bytes, list[tuple[Row, str]]]:
    """Draw a file whose columns are as wide as drawn; return it, and what it holds."""
    says = (rng.random() < 0.7, rng.random() < 0.3)
    drawn = [draw(kind, rng, says) for _ in range(count)]
    rows = [row for row, _ in drawn]
    types = {}
    for name in rows[0]:
        values = [row[name] for row in rows if row[name] is not None]
        kind = rng.choice((pa.int64(), pa.int64(), pa.uint64()))
        for _ in range(depth(values)):
            kind = pa.list_(kind)
        types[name] = kind
    kept = []
    for at, row in enumerate(rows):
        try:
            pa.Table.from_pylist([row], schema=pa.schema(list(types.items())))
            kept.append(at)
        except (pa.ArrowInvalid, OverflowError, pa.ArrowTypeError):
            continue
    table = pa.Table.from_pylist([rows[at] for at in kept], schema=pa.schema(list(types.items())))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes(), [drawn[at] for at in kept]


def depth(values: list[Any]) -> int:
    inner = [v for value in values if isinstance(value, list) for v in value if v is not None]
    return (1 + depth(inner)) if any(isinstance(value, list) for value in values) else 0


def load_row(attachment: Attachment, row: Row) -> str:
    """Return the reason why the loader and its guard refuse a row; empty if they take it."""
    try:
        sample = attachment.sample(row)
        for mask in attachment.masks:
            mask.compile(sample)
        attachment.guard().check(sample)
    except (DatasetError, SpecError) as error:
        return str(error)
    return ""


REASONS = {
    "missing": r"missing value|beyond int64|None|null|does not fit into int64",
    "size": r"-\d|negative|at least 0",
    "length": r"length is not clear|tokens|add up|says|one per token",
}


def kind_of(reason: str) -> str:
    return next((name for name, words in REASONS.items() if re.search(words, reason)), reason)


def campaign(first: int, count: int, minutes: float = 1e9) -> Counter[str]:
    """Judge the rows of files of some seeds, until the time is up, and print every finding."""
    found, end = Counter[str](), time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.parquet")
        for seed in range(first, first + -(-count // ROWS_OF_A_FILE)):
            if time.monotonic() > end:
                break
            kind = KINDS[seed % len(KINDS)]
            data, drawn = draw_file(kind, random.Random(f"rows {seed}"), ROWS_OF_A_FILE)
            path.write_bytes(data)
            for told in judge(kind, path, drawn, found):
                print(seed, told, file=sys.stderr)
    return found


def judge(
    kind: Kind, path: Path, drawn: list[tuple[Row, str]], found: Counter[str]
) -> Iterator[str]:
    """Yield the rows of a file that checker and loader decide otherwise, or for other reasons."""
    spec = Spec.from_text(kind.text)
    (statement,) = check_dataset(spec, str(path)).statements
    refused = {row.row: row.reason for row in statement.refused}
    dataset = read_dataset(path)
    attachment = spec.attachment_of(dataset)
    problem = statement.problems[0] if statement.problems else ""
    for number, (row, fault) in enumerate(drawn):
        alone, whole = load_row(attachment, dataset[number]), refused.get(number, problem)
        found["cases"] += 1
        found["refused"] += bool(alone)
        reasons = kind_of(whole), kind_of(alone)
        is_told = fault not in ("", "many") and reasons[0] != reasons[1]
        if bool(alone) != bool(whole) or is_told:
            found["disagreements"] += 1
            yield f"{fault!r} {row}: {whole!r}, alone {alone!r}"


def main() -> None:
    """Run, write the counts as JSON, and end with status 1 after any finding."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--json", type=Path, help="where the counts go")
    options = parser.parse_args()
    began = time.process_time()
    found = campaign(options.seed, options.count, options.minutes)
    command = f"python tests/fuzz/row_fuzz.py --count {options.count} --seed {options.seed}"
    told: dict[str, object] = {"campaign": "rows", "command": command}
    told |= {name: found[name] for name in ("cases", "refused", "disagreements")}
    told["seconds_cpu"] = round(time.process_time() - began)
    text = json.dumps(told, indent=1)
    print(text)
    if options.json:
        options.json.parent.mkdir(exist_ok=True)
        options.json.write_text(text + "\n")
    sys.exit(bool(found["disagreements"]))


if __name__ == "__main__":
    main()
