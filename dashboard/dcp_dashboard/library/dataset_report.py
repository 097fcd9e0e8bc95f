"""A report of many planned batches as the pages show it, read from `*.dcpbatches.json`.

The planner's `read_batches` checks the outer form; a single figure that is missing or nonsense is
``None`` here, and everything that is shown is bounded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    """One batch; a figure that the file lacks is ``None``.

    Attributes:
        index: number in the data set.
        figures: by name of the file, finite numbers; `seconds` is forward and backward together,
            `shortest`, `median_length`, `longest` are lengths of its sequences in tokens.
        against: predicted seconds of other methods.
        over_tokens: other methods that own more tokens on a device than the cap.
        speedups: their seconds over ours.
        length_counts: sequences by power of two of their length, empty if unknown.
        mask, origin, backend: texts.
        file: name of the plan file beside the report, empty if there is none.
        warnings: of the planner.
    """

    index: int
    figures: Mapping[str, float]
    against: Mapping[str, float]
    over_tokens: frozenset[str]
    speedups: Mapping[str, float]
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
        """Return a figure, ``None`` if it is unknown."""
        return self.best_speedup if name == "speedup" else self.figures.get(name)


@dataclass(frozen=True, slots=True)
class DatasetReport:
    """Many planned batches of one data set.

    Attributes:
        spec, dataset, cluster, mask: texts; empty if the file does not say.
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
        """The other method that is fastest: least median speed-up over it."""
        medians = {name: float(np.median(self.speedups(name))) for name in self.methods}
        return min(medians, key=lambda name: medians[name]) if medians else None

    @property
    def length_counts(self) -> tuple[int, ...]:
        """Sequences of all batches by power of two of their length; empty if unknown."""
        size = max((len(batch.length_counts) for batch in self.batches), default=0)
        return tuple(
            sum(b.length_counts[i] for b in self.batches if i < len(b.length_counts))
            for i in range(size)
        )


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
    cluster = document.get("cluster")
    return DatasetReport(
        spec=_text(document.get("spec")),
        dataset=_text(document.get("dataset")),
        cluster=_cluster(cluster if isinstance(cluster, dict) else {}),
        mask=_text(document.get("mask")),
        num_wanted=_count(document.get("num_wanted")),
        num_available=_count(document.get("num_available")),
        is_complete=document.get("is_complete") is True,
        notes=_texts(document.get("notes")),
        batches=tuple(_line(at, batch) for at, batch in enumerate(document["batches"])),
    )


def _line(at: int, batch: Mapping[str, Any]) -> BatchLine:
    figures = {
        name: number for name, value in batch.items() if (number := _number(value)) is not None
    }
    lengths = batch.get("lengths")
    for name, key in (("shortest", "least"), ("median_length", "median"), ("longest", "most")):
        length = _number(lengths.get(key)) if isinstance(lengths, dict) else None
        if length is not None:
            figures[name] = length
    ours = _seconds(batch)
    if ours is not None:
        figures["seconds"] = ours
    if "forward_bytes" in figures and "backward_bytes" in figures:
        figures["bytes"] = figures["forward_bytes"] + figures["backward_bytes"]
    against = _against(batch.get("against"))
    index = _count(batch.get("index"))
    file = PurePosixPath(_text(batch.get("file")))
    return BatchLine(
        index=at if index is None else index,
        figures=figures,
        against=against,
        over_tokens=_over_tokens(batch.get("against")),
        speedups={name: theirs / ours for name, theirs in against.items()} if ours else {},
        length_counts=_counts(batch.get("length_counts")),
        mask=_text(batch.get("mask")),
        origin=_text(batch.get("origin")),
        backend=_text(batch.get("backend")),
        file=file.name if file.name == str(file) else "",  # beside the report or nowhere
        warnings=_texts(batch.get("warnings")),
    )


def _against(value: object) -> dict[str, float]:
    if not isinstance(value, dict):
        return {}
    found: dict[str, float] = {}
    for name, figures in list(value.items())[:MOST_METHODS]:
        seconds = _seconds(figures) if isinstance(figures, dict) else None
        if seconds:
            found[_text(name)] = seconds
    return found


def _over_tokens(value: object) -> frozenset[str]:
    items = list(value.items())[:MOST_METHODS] if isinstance(value, dict) else []
    return frozenset(
        _text(name)
        for name, figures in items
        if isinstance(figures, dict) and "tokens" in _texts(figures.get("over_caps"))
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


def _counts(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(_count(part) or 0 for part in value[:MOST_BINS])


def _text(value: object) -> str:
    shown = value if isinstance(value, str) else ""
    return "".join(c for c in shown[:MOST_TEXT] if c.isprintable())


def _texts(value: object) -> tuple[str, ...]:
    parts: Sequence[object] = value[:20] if isinstance(value, list) else ()
    return tuple(text for part in parts if (text := _text(part)))


def _cluster(values: Mapping[str, Any]) -> str:
    name, nodes, devices = values.get("name"), values.get("nodes"), values.get("devices_per_node")
    size = [str(_count(part)) for part in (nodes, devices) if _count(part)]
    return " ".join(part for part in (_text(name), " x ".join(size)) if part)
