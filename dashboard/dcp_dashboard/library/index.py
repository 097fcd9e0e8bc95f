"""Rows of the list: figures of each plan from its `meta.json`, and reports of many planned batches.

A plan is read whole when it is opened, so a file whose tables are damaged is in the list like any
other. Files that a request does not read within `READ_S` are read in a thread of their own.

The planner's `read_batches` checks the outer form of a report, `*.dcpbatches.json`. This module
leaves out every single figure that is missing or not a number, and cuts texts and lists to a bound.
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dcp_dashboard.library.folder import SUFFIX, Folder, PlanEntry
from dcp_dsl import DCPError
from dcp_planner import ModelShape, PlanError, PlanFileError, Source, read_batches, read_meta
from dcp_planner.report import SCOPES, Rival, Scope, best_static

READ_S = 0.3
"""Most seconds that a request spends on files that its page does not show."""
SOURCES: tuple[Source, ...] = ("simulated", "measured")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PlanLine:
    """Figures and texts of a plan that its line of the list shows.

    Bytes are those of forward and backward together; the density is over the pairs of a causal mask
    on each sequence. Seconds are by the source of each trace, ``None`` if the file does not say: an
    older file has none, and a file without a predicted trace leaves the prediction to its reader.
    """

    mask: str
    origin: str
    partitioner: str
    tokens: int
    devices: int
    pairs: int
    total_bytes: int
    density: float
    compute_imbalance: float
    token_imbalance: float
    seconds: Mapping[Source, float | None]
    gains: Mapping[Scope, float] = field(default_factory=dict)
    """Speed-ups over the fastest static layouts, by scope, as far as the file names any."""


@dataclass(frozen=True, slots=True)
class FileRow(Generic[Value]):
    """A row of the list: the figures of a file, or why it cannot be read, or neither yet."""

    entry: PlanEntry
    value: Value | None
    error: str = ""

    @classmethod
    def read(cls, entry: PlanEntry, read: Callable[[PlanEntry], Value]) -> "FileRow[Value]":
        """Read a file; a `DCPError` becomes the text of the row."""
        try:
            return FileRow(entry, read(entry))
        except DCPError as error:
            return FileRow(entry, None, str(error))

    @property
    def is_read(self) -> bool:
        """Tell whether the file has been read, with success or not."""
        return self.value is not None or bool(self.error)


PlanRow = FileRow[PlanLine]


class PlanIndex:
    """Rows of all plans of a folder; safe to use from several threads."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._rows: dict[str, PlanRow] = {}
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()

    def rows(self) -> list[PlanRow]:
        """Return a row for every plan, by path; a changed file is read again."""
        entries = self._folder.files(SUFFIX)
        for key in set(self._rows).difference(entry.key for entry in entries):
            self._rows.pop(key, None)  # its file is gone
        unread = [entry for entry in entries if not self._row(entry).is_read]
        # A small folder is complete at once; of a large one the page shows what is known by then.
        deadline = time.monotonic() + READ_S
        while unread and time.monotonic() < deadline:
            self._read(unread.pop())
        with self._lock:
            if unread and (self._reader is None or not self._reader.is_alive()):
                self._reader = threading.Thread(target=self._read_all, args=(unread,), daemon=True)
                self._reader.start()
        return [self._row(entry) for entry in entries]

    def read(self, rows: Iterable[PlanRow]) -> list[PlanRow]:
        """Read the files of these rows that are still unread, and return the rows."""
        return [row if row.is_read else self._read(row.entry) for row in rows]

    def _row(self, entry: PlanEntry) -> PlanRow:
        """Return what is known of a file; nothing if its size or time has changed since."""
        known = self._rows.get(entry.key)
        return FileRow(entry, None) if known is None or known.entry != entry else known

    def _read(self, entry: PlanEntry) -> PlanRow:
        row = self._rows[entry.key] = FileRow.read(entry, read_line)
        return row

    def _read_all(self, entries: list[PlanEntry]) -> None:
        for entry in entries:
            # A page that shows the file may have read it meanwhile.
            if not self._row(entry).is_read:
                self._read(entry)


def read_line(entry: PlanEntry) -> PlanLine:
    """Read the figures and texts of a plan that the list shows."""
    meta = read_meta(entry.path)
    try:
        return _line(meta)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise PlanFileError(
            f"expected the figures of a plan in meta.json, got {type(error).__name__}: {error}; "
            "write it again with `dcpm plan ... --out FILE.dcpplan`",
            entry.relative,
        ) from error


def _line(meta: Mapping[str, Any]) -> PlanLine:  # Any: JSON values
    metrics, provenance = meta["metrics"], meta["provenance"] or {}
    sides = (metrics["forward"], metrics["backward"])
    # Whoever opens a plan without a simulated trace gets one, so the prediction is always listed.
    seconds: dict[str, Any] = {"simulated": None}
    seconds |= {trace["source"]: trace.get("seconds") for trace in meta["traces"]}
    return PlanLine(
        mask=str(provenance.get("mask", "unnamed mask")),
        origin=str(provenance.get("origin", "")),
        partitioner=str(meta["partitioner"]),
        tokens=int(metrics["tokens"]),
        devices=len(metrics["owned_tokens"]),
        pairs=int(metrics["pairs"]),
        total_bytes=sum(int(side["total_bytes"]) for side in sides),
        density=_finite(metrics["density"]),
        compute_imbalance=_finite(metrics["compute_imbalance"]),
        token_imbalance=_finite(metrics["token_imbalance"]),
        gains=_gains(meta),
        seconds={
            source: None if seconds[source] is None else _finite(seconds[source])
            for source in SOURCES
            if source in seconds
        },
    )


def _gains(meta: Mapping[str, Any]) -> dict[Scope, float]:  # Any: JSON values
    """Read what `dcpm plan --against` wrote beside the plan; anything unlike it counts as none."""
    seconds = [_number(t.get("seconds")) for t in meta["traces"] if t["source"] == "simulated"]
    others = _table(meta.get("against"))
    times = {name: s for name, value in others.items() if (s := _seconds(_table(value)))}
    over = {name: _texts(_table(value).get("over_caps")) for name, value in others.items()}
    if not seconds or not seconds[0]:
        return {}
    return {scope: of.speedup for scope, of in best_static(seconds[0], times, over).items()}


def _finite(value: Any) -> float:  # Any: a JSON value
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a number that is not finite: {value}")
    return number


TAIL_BYTES = 1 << 16
"""Bytes at the end of a log that the list reads: some hundred steps."""


@dataclass(frozen=True, slots=True)
class RunLine:
    """The newest steps of a run: number of the last one, median seconds; ``None`` if unknown."""

    last: int | None
    step_s: float | None
    attention_s: float | None


def read_run(path: Path) -> RunLine:
    """Read the newest steps of a log; lines that are cut off or no records are passed over."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            lines = file.read(TAIL_BYTES).split(b"\n")
    except OSError:  # its file is gone
        return RunLine(None, None, None)
    steps = [record for line in lines if (record := _record(line))]

    def median(name: str) -> float | None:
        known = [n for record in steps if (n := _number(record.get(name))) is not None]
        return float(np.median(known)) if known else None

    last = max((number for record in steps if (number := _count(record["step"]))), default=None)
    return RunLine(last, median("step_s"), median("measured_s"))


def _record(line: bytes) -> dict[str, Any]:
    try:
        found = _table(json.loads(line))
    except (ValueError, RecursionError):
        return {}
    return found if "step" in found else {}


MOST_METHODS, MOST_BINS, MOST_TEXT = 24, 40, 200
"""Most other methods and length bins of a batch, and characters of a text, that are kept."""


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A planned batch of a report, as far as its figures are finite numbers.

    `figures` by their name in the file, with `seconds` (forward and backward), `shortest`,
    `median_length` and `longest` (tokens). By method: `speedups` (its seconds over ours), those
    `over_tokens` (above the cap), `token_imbalances` (fullest device over the mean).
    `length_counts` are sequences by power of two of their length; `file` lies beside the report.
    """

    index: int
    figures: Mapping[str, float]
    speedups: Mapping[str, float]
    over_tokens: frozenset[str]
    token_imbalances: Mapping[str, float]
    length_counts: tuple[int, ...]
    mask: str
    origin: str
    backend: str
    file: str
    warnings: tuple[str, ...]

    @property
    def rivals(self) -> dict[Scope, Rival]:
        """The fastest static layouts of this batch."""
        over = dict.fromkeys(self.over_tokens, ("tokens",))
        return best_static(1.0, self.speedups, over)

    def fullest(self, method: str = "") -> float | None:
        """Return the tokens of the device that owns most, of our plan or of another method's."""
        tokens, devices = self.figures.get("tokens"), self.figures.get("devices")
        of = self.token_imbalances.get(method) if method else self.figures.get("token_imbalance")
        return of * tokens / devices if tokens and devices and of else None

    def value(self, name: str) -> float | None:
        """Return a figure of the table, ``None`` if the file lacks it."""
        if name == "index":
            return float(self.index)
        if name in SCOPES:
            return best.speedup if (best := self.rivals.get(name)) else None
        return self.figures.get(name)


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Many planned batches of one data set, in the file's order; texts are empty if unknown.

    `cluster` names the machine and its size, `shape` the heads that were planned, if known. A
    report is not complete while planning goes on, or if planning was stopped.
    """

    spec: str
    dataset: str
    cluster: str
    cluster_name: str
    shape: ModelShape | None
    mask: str
    num_wanted: int | None
    num_available: int | None
    is_complete: bool
    notes: tuple[str, ...]
    batches: tuple[BatchLine, ...]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a figure of all batches that have it."""
        values = [batch.value(name) for batch in self.batches]
        return np.array([value for value in values if value is not None], dtype=np.float64)

    @property
    def methods(self) -> tuple[str, ...]:
        """Other methods, in the order in which batches name them."""
        return tuple(dict.fromkeys(name for batch in self.batches for name in batch.speedups))

    def speedups(self, method: str) -> NDArray[np.float64]:
        """Return the speed-ups over one method, of the batches that have it."""
        return np.array([b.speedups[method] for b in self.batches if method in b.speedups])

    @property
    def length_counts(self) -> tuple[int, ...]:
        """Sequences of all batches by power of two of their length; empty if unknown."""
        counts = (batch.length_counts for batch in self.batches)
        return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def read_report(path: Path) -> DatasetReport:
    """Read a report; `PlanFileError` if it is missing, too large, no JSON, or no such report."""
    return parse_report(read_batches(path))


def parse_report(document: Mapping[str, Any]) -> DatasetReport:
    """Build a report from a checked document; `Any`: JSON values."""
    return DatasetReport(
        spec=_text(document.get("spec")),
        dataset=_text(document.get("dataset")),
        cluster=_cluster(_table(document.get("cluster"))),
        cluster_name=_text(_table(document.get("cluster")).get("name")),
        shape=_shape(_table(document.get("shape"))),
        mask=_text(document.get("mask")),
        num_wanted=_count(document.get("num_wanted")),
        num_available=_count(document.get("num_available")),
        is_complete=document.get("is_complete") is True,
        notes=_texts(document.get("notes")),
        batches=tuple(_batch_line(at, batch) for at, batch in enumerate(document["batches"])),
    )


def _batch_line(at: int, batch: Mapping[str, Any]) -> BatchLine:
    # A report may be any JSON: an entry that is not a number is left out and breaks no page.
    figures = {
        name: number for name, value in batch.items() if (number := _number(value)) is not None
    }
    lengths = _table(batch.get("lengths"))
    for name, key in (("shortest", "least"), ("median_length", "median"), ("longest", "most")):
        length = _number(lengths.get(key))
        if length is not None:
            figures[name] = length
    ours = _seconds(batch)
    if ours is not None:
        figures["seconds"] = ours
    if "forward_bytes" in figures and "backward_bytes" in figures:
        figures["bytes"] = figures["forward_bytes"] + figures["backward_bytes"]
    against = {
        _text(name): _table(value)
        for name, value in list(_table(batch.get("against")).items())[:MOST_METHODS]
    }
    index = _count(batch.get("index"))
    file = PurePosixPath(_text(batch.get("file")))
    return BatchLine(
        index=at if index is None else index,
        figures=figures,
        speedups={
            name: theirs / ours
            for name, value in against.items()
            if ours and (theirs := _seconds(value))
        },
        over_tokens=frozenset(
            name for name, value in against.items() if "tokens" in _texts(value.get("over_caps"))
        ),
        token_imbalances={
            name: most
            for name, value in against.items()
            if (most := _number(value.get("token_imbalance"))) is not None
        },
        length_counts=tuple(
            _count(part) or 0 for part in _items(batch.get("length_counts"))[:MOST_BINS]
        ),
        mask=_text(batch.get("mask")),
        origin=_text(batch.get("origin")),
        backend=_text(batch.get("backend")),
        # A bare name means a file beside the report; a path could lead out of its folder.
        file=file.name if file.name == str(file) else "",
        warnings=_texts(batch.get("warnings")),
    )


def _seconds(figures: Mapping[str, Any]) -> float | None:
    """Add forward and backward up, ``None`` unless both are known and none is negative."""
    parts = [_number(figures.get(f"predicted_{side}_s")) for side in ("forward", "backward")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == 2 and min(known) >= 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON holds whole numbers of any length; `float` would raise for the largest of them.
    if isinstance(value, int) and abs(value) >= 2**63:
        return None
    return float(value) if math.isfinite(value) else None


def _count(value: object) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number >= 0 else None


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    shown = value if isinstance(value, str) else ""
    return "".join(c for c in shown[:MOST_TEXT] if c.isprintable())


def _texts(value: object) -> tuple[str, ...]:
    return tuple(text for part in _items(value)[:20] if (text := _text(part)))


def _shape(values: Mapping[str, Any]) -> ModelShape | None:
    q_heads, kv_heads, head_dim = (
        _count(values.get(name)) or 0 for name in ("q_heads", "kv_heads", "head_dim")
    )
    try:
        return ModelShape(q_heads, kv_heads, head_dim)
    except PlanError:  # a number is missing, or the heads do not go together
        return None


def _cluster(values: Mapping[str, Any]) -> str:
    counts = (_count(values.get("nodes")), _count(values.get("devices_per_node")))
    size = " x ".join(str(count) for count in counts if count)
    return " ".join(part for part in (_text(values.get("name")), size) if part)
