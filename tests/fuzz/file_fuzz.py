"""Damage foreign files and messages at random and read them: nothing may end the process.

`make fuzz MINUTES=n` runs every kind for its share of the time; `--count` runs a fixed number. Each
kind is read by a child, so that a signal is counted and named by its seed, which alone makes the
file again: `python tests/fuzz/file_fuzz.py --kind arrow --seed 17 --count 1 --keep FILE`.
"""

import argparse
import itertools
import json
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import message_targets
import pyarrow as pa
import pyarrow.parquet as pq
import row_fuzz
import value_cases

from dcp_dsl import DatasetError, DCPError, Sample, Spec, read_dataset
from dcp_dsl.coverage.dataset_checker import check_dataset
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, simulate
from dcp_planner.batches.batch import batch_of_samples
from dcp_planner.plan.arrow_tables import TABLES, decode_table, encode_table
from dcp_planner.plan.columns import columns_of_plan, columns_of_traces

CHUNK = 5_000  # files that one child reads
HANG_CPU_S, HANG_S = 20, 600  # a busy machine may need long for little
MEMORY_BYTES = 6 << 30
ODD = (0, 1, -1, 2, 7, 8, 127, 255, 2**16, 2**31 - 1, -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63))
Case = tuple[str, bytes, Callable[[Path], object]]


def damage(data: bytes, rng: random.Random) -> bytes:
    """Change a few places: bytes, numbers, cuts, repeats; in half of the files near an end."""
    found = bytearray(data)
    head, tail = rng.choice(((0, 0), (0, 0), (1_000, 0), (0, 1_000)))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        size = max(1, len(found))
        at = rng.randrange(max(0, size - tail) if tail else 0, min(size, head) if head else size)
        match rng.randrange(7):
            case 0 | 1 | 2:
                found[at : at + 1] = bytes([rng.randrange(256)])
            case 3:
                width, kind = rng.choice(((2, "<H"), (4, "<I"), (8, "<Q")))
                at -= at % width
                found[at : at + width] = struct.pack(kind, rng.choice(ODD) % 256**width)
            case 4:
                del found[at : at + rng.randrange(1, 9)]
            case 5:
                found[at:at] = found[at : at + rng.randrange(1, 17)]
            case _:
                other = rng.randrange(len(found) + 1)
                size = rng.randrange(1, 65)
                found[at : at + size] = found[other : other + size]
    return bytes(found)


def tables() -> list[tuple[str, int, bytes]]:
    """Name, rows and bytes of every table of three plans: small, with other forms, and larger."""
    found = []
    documents = "segment d = [lens]*  mask m = causal and same(d)"
    strided = "mask m = sliding(9) and (q-k)%3==0"
    made = (documents, [30, 9]), (strided, None), (documents, [900, 30, 70])
    for text, lens in made:
        spec = Spec.from_text(text)
        sample = Sample({"lens": lens}, sum(lens)) if lens else Sample({}, 39)
        (batch,) = batch_of_samples(spec, spec.mask("m"), [sample], 8)
        config = PlanConfig(partitioner="static:zigzag")
        plan = build_plan(batch.sparsity, ModelShape(), Cluster(2, 2), config)
        made = columns_of_plan(plan) | {"events": columns_of_traces((simulate(plan),))}
        for name, table in made.items():
            rows = len(table[next(iter(TABLES[name]))])
            found.append((name, rows, encode_table(name, table)))
    return found


def arrow_cases() -> Callable[[random.Random], Case]:
    """Tables of plan files."""
    known = tables()

    def draw(rng: random.Random) -> Case:
        name, rows, data = rng.choice(known)

        def read(path: Path) -> None:
            decode_table(name, path.read_bytes(), rows, 1 << 28)

        return f"{name}.arrow", damage(data, rng), read

    return draw


SPEC = Spec.from_text('mask m = causal and q - k < row.len  for "*" having a use m  for "*" use m')


def touch(path: Path) -> None:
    """Read a data set as the checker does, then as the loader does: lengths and all rows."""
    with suppress(DatasetError):
        check_dataset(SPEC, str(path))
    dataset = read_dataset(path)
    for row in range(len(dataset)):
        dataset[row]
    _ = dataset.lengths


WORDS = (
    b"null", b"{}", b"[]", b'{"len": 1}', b"1e999", b"NaN", b"-", b'"\\ud800"', b"\xff", b"\0",
    b"[[", b"]", b"{", b"}", b",", b":", b"\n", b"\r", b'"', b"18446744073709551616", b"true",
)  # fmt: skip


def jsonl_cases() -> Callable[[random.Random], Case]:
    """JSON lines, damaged by bytes and by words of JSON."""
    row = json.dumps({"len": 3, "a": [1, 2], "t": "x", "n": {"b": [[1], []]}, "f": 0.5, "z": None})

    def draw(rng: random.Random) -> Case:
        data = "\n".join([row] * rng.choice((1, 2, 3, 4, 5, 40))).encode()
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data) + 1)
            data = data[:at] + rng.choice(WORDS) + data[at + rng.choice((0, 0, 1, 4, 30)) :]
        return "a.jsonl", damage(data, rng) if rng.random() < 0.5 and data else data, touch

    return draw


def parquet_cases() -> Callable[[random.Random], Case]:
    """Parquet files of several types, encodings and codecs."""
    columns = {
        "len": pa.array([3, 2, 1], pa.int32()),
        "a": pa.array([[1, 2], [], [3]], pa.list_(pa.int16())),
        "n": pa.array([[[1], []], [], [[2, 3]]], pa.list_(pa.large_list(pa.int64()))),
        "tokens": pa.array([[1, 2, 3], [4, 5], [6]], pa.list_(pa.uint32())),
        "t": pa.array(["x", None, "yy"]),
        "d": pa.array([1, None, 3], pa.timestamp("us")),
    }
    small = pa.table(columns)
    kinds = {}, {"compression": "zstd"}, {"use_dictionary": False, "version": "1.0"}
    files = []
    for table, options in itertools.product((small, small, pa.concat_tables([small] * 20)), kinds):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, **options)
        files.append(sink.getvalue().to_pybytes())

    def draw(rng: random.Random) -> Case:
        return "a.parquet", damage(rng.choice(files), rng), touch

    return draw


def row_cases() -> Callable[[random.Random], Case]:
    """Rows that fit a spec, or do not: the checker of data sets and the loader agree."""

    def draw(rng: random.Random) -> Case:
        kind = rng.choice(row_fuzz.KINDS)
        data, drawn = row_fuzz.draw_file(kind, rng, 20)

        def compare(path: Path) -> None:
            assert not [*row_fuzz.judge(kind, path, drawn, Counter())]

        return "a.parquet", data, compare

    return draw


KINDS = {
    "arrow": arrow_cases, "jsonl": jsonl_cases, "parquet": parquet_cases, "rows": row_cases,
    "values": value_cases.value_cases, **message_targets.KINDS,
}  # fmt: skip


def run_chunk(
    kind: str, draw: Callable, seeds: range, end: float, board: mmap.mmap, grow: bool
) -> None:
    """Read files in this child until the end; the board says which one, and how they ended."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=os.environ.get("FUZZ_DIR")) as folder:
        for seed in itertools.takewhile(lambda _: time.monotonic() < end, seeds):
            board[:8] = struct.pack("<q", seed)
            name, data, read = draw(random.Random(f"{kind} {seed}"))
            path = Path(folder, name)
            path.write_bytes(data)
            signal.setitimer(signal.ITIMER_PROF, HANG_CPU_S)
            signal.alarm(HANG_S)
            try:
                seen = read(path)
                if grow and kind in message_targets.KINDS:
                    message_targets.keep_new(kind, data, seen)
                place = 8
            except DCPError:
                place = 16
            except BaseException:
                print(f"{kind} {seed}: {traceback.format_exc()}", file=sys.stderr, flush=True)
                place = 24
            signal.alarm(0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            told = struct.unpack("<q", board[place : place + 8])[0]
            board[place : place + 8] = struct.pack("<q", told + 1)


def run(kind: str, first: int, count: int, seconds: float, *, grow: bool = False) -> Counter[str]:
    """Read files until the count or the time is reached."""
    draw, board, found = KINDS[kind](), mmap.mmap(-1, 32), Counter[str]()
    seed, end = first, time.monotonic() + seconds
    while seed < first + count and time.monotonic() < end:
        seeds = range(seed, min(seed + CHUNK, first + count))
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run_chunk(kind, draw, seeds, end, board, grow)
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        at = struct.unpack("<q", board[:8])[0]
        if os.WIFSIGNALED(status):
            print(f"{kind} {at}: signal {os.WTERMSIG(status)}", file=sys.stderr, flush=True)
            found["signals"] += 1
        seed = at + 1
    read, refused, errors = struct.unpack("<qqq", board[8:32])
    return Counter(read=read, refused=refused, errors=errors, signals=found["signals"])


def main() -> None:
    """Run, print the counts as JSON, and end with status 1 after any finding."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", choices=sorted(KINDS), action="append")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--count", type=int, default=sys.maxsize, help="files of each kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first file")
    parser.add_argument("--grow", action="store_true", help="add new inputs to the corpus")
    parser.add_argument("--json", type=Path, help="where the counts go as well")
    parser.add_argument("--keep", type=Path, help="write the first file here and read nothing")
    options = parser.parse_args()
    kinds = options.kind or sorted(KINDS)
    if options.keep:
        rng = random.Random(f"{kinds[0]} {options.seed}")
        options.keep.write_bytes(KINDS[kinds[0]]()(rng)[1])
        return
    share = 60 * options.minutes / len(kinds)
    found = {
        kind: run(kind, options.seed, options.count, share, grow=options.grow) for kind in kinds
    }
    if options.json:
        total = sum(found.values(), Counter())
        used = sum(sum(resource.getrusage(who)[:2]) for who in (0, resource.RUSAGE_CHILDREN))
        named = options.kind is not None
        chosen = "".join(f" --kind {kind}" for kind in kinds) + f" --count {options.count}"
        report = {
            "campaign": f"fuzzing {', '.join(kinds)}" if named else "fuzzing",
            "command": f"python tests/fuzz/file_fuzz.py{chosen}"
            if named
            else "make fuzz MINUTES=n",
            "cases": total.total(),
            "refused": total["refused"],
            "errors": total["errors"],
            "signals": total["signals"],
            "seconds_cpu": round(used, 1),
            "kinds": found,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(found))
    sys.exit(any(counts["signals"] or counts["errors"] for counts in found.values()))


if __name__ == "__main__":
    main()
