"""`PlanIndex` lists the plans of a folder from the `meta.json` of each file, read once.

A plan is read whole when somebody opens it, so a file whose tables are damaged is in the list like
any other. What is not read within `READ_S` of the first request is read in a thread of its own.
"""

import math
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dcp_dashboard.library.folder import SUFFIX, Folder, PlanEntry
from dcp_dsl import DCPError
from dcp_planner import PlanFileError, Source, read_meta

READ_S = 0.3
"""Most seconds that a request reads files for, beside those that it shows."""
SOURCES: tuple[Source, ...] = ("simulated", "measured")

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PlanLine:
    """Figures and texts of a plan that its line of the list shows.

    Attributes:
        mask, origin, partitioner: texts for people.
        tokens, devices, pairs, total_bytes: counts; bytes move forward or backward.
        density: pairs over those of a causal mask on each sequence.
        compute_imbalance, token_imbalance: most over mean.
        seconds: by the source of each trace; ``None`` if the file does not say: it may be older, or
            leave its prediction to whoever opens it.
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


@dataclass(frozen=True, slots=True)
class FileRow(Generic[Value]):
    """A row of the list: a file in numbers, or why it cannot be read; neither: not read yet.

    Attributes:
        entry: the file.
        value: its content in numbers, ``None`` if it could not be read.
        error: message for people, empty if all is well.
    """

    entry: PlanEntry
    value: Value | None
    error: str = ""

    @property
    def is_read(self) -> bool:
        """Tell whether somebody has looked into the file."""
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
        deadline = time.monotonic() + READ_S
        while unread and time.monotonic() < deadline:
            self._read(unread.pop())
        if unread:
            self._read_later(unread)
        return [self._row(entry) for entry in entries]

    def read(self, rows: Iterable[PlanRow]) -> list[PlanRow]:
        """Return rows of which all files are read."""
        return [row if row.is_read else self._read(row.entry) for row in rows]

    def _row(self, entry: PlanEntry) -> PlanRow:
        known = self._rows.get(entry.key)
        return FileRow(entry, None) if known is None or known.entry != entry else known

    def _read(self, entry: PlanEntry) -> PlanRow:
        row = self._rows[entry.key] = plan_row(entry)
        return row

    def _read_later(self, entries: list[PlanEntry]) -> None:
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=self._read_all, args=(entries,), daemon=True)
                self._reader.start()

    def _read_all(self, entries: list[PlanEntry]) -> None:
        for entry in entries:
            if not self._row(entry).is_read:
                self._read(entry)


def plan_row(entry: PlanEntry) -> PlanRow:
    """Read one file; what is wrong with it becomes a text."""
    try:
        return FileRow(entry, read_line(entry))
    except DCPError as error:
        return FileRow(entry, None, str(error))


def read_line(entry: PlanEntry) -> PlanLine:
    """Read what the list says of a plan.

    Raises:
        DCPError: if the file has no readable `meta.json`, or figures are missing there.
    """
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
        seconds={
            source: None if seconds[source] is None else _finite(seconds[source])
            for source in SOURCES
            if source in seconds
        },
    )


def _finite(value: Any) -> float:  # Any: a JSON value
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"a number that is not finite: {value}")
    return number
