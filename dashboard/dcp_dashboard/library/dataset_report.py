"""Reads a report of many planned batches, `*.dcpbatches.json`, as the pages show it.

The planner's `read_batches` checks the outer form. A single figure that is missing or no number is
left out here, and every text and list is cut to a bound.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_planner import read_batches

MOST_METHODS = 24
MOST_BINS = 40
MOST_TEXT = 200


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One planned batch.

    Attributes:
        index: number in the data set.
        figures: finite numbers by their name in the file; `seconds` is forward and backward
            together, `shortest`, `median_length`, `longest` are lengths of sequences in tokens.
        speedups: predicted seconds of other methods over ours.
        over_tokens: other methods that own more tokens on a device than the cap.
        length_counts: sequences by power of two of their length, empty if unknown.
        mask, origin, backend: texts.
        file: name of the plan file beside the report, empty if there is none.
        warnings: of the planner.
    """

    index: int
    figures: Mapping[str, float]
    speedups: Mapping[str, float]
    over_tokens: frozenset[str]
    length_counts: tuple[int, ...]
    mask: str
    origin: str
    backend: str
    file: str
    warnings: tuple[str, ...]

    @property
    def best_speedup(self) -> float | None:
        """Speed-up over the fastest other method of this batch."""
        return min(self.speedups.values()) if self.speedups else None

    def value(self, name: str) -> float | None:
        """Return a figure of the table, ``None`` if the file lacks it."""
        if name == "index":
            return float(self.index)
        return self.best_speedup if name == "speedup" else self.figures.get(name)


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Many planned batches of one data set.

    Attributes:
        spec, dataset, cluster, mask: texts; empty if the file has none.
        num_wanted, num_available: batches; ``None`` if unknown.
        is_complete: false while planning goes on, or after it was stopped.
        notes: sentences of the planner.
        batches: in the file's order.
    """

    spec: str
    dataset: str
    cluster: str
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
    def rival(self) -> str | None:
        """The fastest other method: our median speed-up over it is the least."""
        return min(
            self.methods, key=lambda name: float(np.median(self.speedups(name))), default=None
        )

    @property
    def length_counts(self) -> tuple[int, ...]:
        """Sequences of all batches by power of two of their length; empty if unknown."""
        counts = (batch.length_counts for batch in self.batches)
        return tuple(map(sum, zip_longest(*counts, fillvalue=0)))


def read_report(path: Path) -> DatasetReport:
    """Read a report.

    Raises:
        PlanFileError: if it is missing, too large, no JSON, or no such report.
    """
    return parse_report(read_batches(path))


def parse_report(document: Mapping[str, Any]) -> DatasetReport:
    """Build a report from a checked document; `Any`: JSON values.

    >>> parse_report({"batches": [{"tokens": 8}, {"tokens": "many"}]}).column("tokens").tolist()
    [8.0]
    """
    return DatasetReport(
        spec=_text(document.get("spec")),
        dataset=_text(document.get("dataset")),
        cluster=_cluster(_table(document.get("cluster"))),
        mask=_text(document.get("mask")),
        num_wanted=_count(document.get("num_wanted")),
        num_available=_count(document.get("num_available")),
        is_complete=document.get("is_complete") is True,
        notes=_texts(document.get("notes")),
        batches=tuple(_line(at, batch) for at, batch in enumerate(document["batches"])),
    )


def _line(at: int, batch: Mapping[str, Any]) -> BatchLine:
    # A report is anybody's JSON: what is no number is left out, never an error of the page.
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
        length_counts=tuple(
            _count(part) or 0 for part in _items(batch.get("length_counts"))[:MOST_BINS]
        ),
        mask=_text(batch.get("mask")),
        origin=_text(batch.get("origin")),
        backend=_text(batch.get("backend")),
        file=file.name if file.name == str(file) else "",  # beside the report or nowhere
        warnings=_texts(batch.get("warnings")),
    )


def _seconds(figures: Mapping[str, Any]) -> float | None:
    parts = [_number(figures.get(f"predicted_{side}_s")) for side in ("forward", "backward")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == 2 and min(known) >= 0 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
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


def _cluster(values: Mapping[str, Any]) -> str:
    counts = (_count(values.get("nodes")), _count(values.get("devices_per_node")))
    size = " x ".join(str(count) for count in counts if count)
    return " ".join(part for part in (_text(values.get("name")), size) if part)
