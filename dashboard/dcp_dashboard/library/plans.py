"""Plans of the served folder, parsed once per content of a file: two bounded caches.

A parsed plan (tables, traces, numbers) is kept for the few plans somebody looks at, a row of
numbers for every file of the list. Both are keyed by path, size and modification time, so an
overwritten file is read anew at the next request.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from dcp_dashboard.library.dataset_report import DatasetReport, read_report
from dcp_dashboard.library.folder import (
    REPORT_SUFFIX,
    SUFFIX,
    DashboardError,
    Folder,
    PlanEntry,
    plan_key,
)
from dcp_dashboard.library.session_plans import MAX_PLANS, SessionPlans
from dcp_dashboard.library.summary import DeviceTotals, PlanSummary, device_totals, summarise
from dcp_dsl import DCPError
from dcp_planner import (
    BatchFigures,
    Plan,
    Source,
    TimeParts,
    Trace,
    figures_of,
    measure,
    read_plan,
    simulate,
    split_time,
)

MAX_FILE_BYTES = 2 * 10**9
LIMIT_BYTES = 2**30
"""Most bytes of a file, and of what each of its tables unpacks to."""
MAX_SESSION_BYTES = 2**28
"""The same for files that a browser sent: a small file can claim to unpack to much."""
MAX_DEVICES = 1024
"""Devices of a plan that is shown: traffic is a cell for every two of them."""
LIST_BUDGET_S = 5.0

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, eq=False)
class LoadedPlan:
    """A parsed plan file and what is computed from it once.

    Attributes:
        entry: the file.
        plan: its plan.
        traces: by source; `simulated` is always there, computed if the file does not carry it.
        verified: whether the measured run was exact, ``None`` if it was not compared.
        totals, summary: the plan in numbers, per device and as a whole.
    """

    entry: PlanEntry
    plan: Plan
    traces: Mapping[Source, Trace]
    verified: bool | None
    totals: DeviceTotals
    summary: PlanSummary


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One line of the list: numbers, or the reason why there are none.

    Attributes:
        entry: the file.
        summary: its numbers, ``None`` if it could not be read.
        is_verified: what the writer noted, ``None`` if nothing.
        error: message for people, empty if all is well.
    """

    entry: PlanEntry
    summary: PlanSummary | None
    is_verified: bool | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A report of a data set, or the reason why it cannot be read.

    Attributes:
        entry: the file.
        report: what it says, ``None`` if it could not be read.
        error: message for people, empty if all is well.
    """

    entry: PlanEntry
    report: DatasetReport | None
    error: str = ""


class BoundedCache(Generic[Value]):
    """A mapping that forgets the entry used longest ago; safe to use from several threads.

    >>> cache = BoundedCache[int](1)
    >>> cache.get("a", lambda: 1), cache.get("b", lambda: 2), cache.get("a", lambda: 3)
    (1, 2, 3)
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.RLock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Give the value of `key`, made by `make` if unknown; makers run one at a time."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            self._values.move_to_end(key)
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)
            return self._values[key]

    def holds(self, key: Hashable) -> bool:
        """Whether `get` would answer without making the value."""
        with self._lock:
            return key in self._values


class PlanLibrary:
    """Everything the pages and the data API read; the only place that opens plan files.

    Attributes:
        folder: the served folder.
        session: plans that lie in no folder, dropped on a page or planned there.
    """

    def __init__(self, root: Path) -> None:
        self.folder = Folder(root)
        self.session = SessionPlans()
        self._plans = BoundedCache[LoadedPlan](8)
        self._rows = BoundedCache[PlanRow](4_096)
        self._payloads = BoundedCache[bytes](32)
        self._reports = BoundedCache[DatasetReport](16)
        self._figures = BoundedCache[BatchFigures](256)
        self._time_parts = BoundedCache[TimeParts](256)

    @property
    def root(self) -> Path:
        """The served folder, resolved."""
        return self.folder.root

    def rows(self) -> tuple[tuple[PlanRow, ...], bool]:
        """Give a row for every plan file, and whether the scan of the folder was complete.

        Files are read for at most `LIST_BUDGET_S`; the rest say that they are not read yet.
        """
        found = self.folder.scan()
        deadline = time.monotonic() + LIST_BUDGET_S
        rows = []
        for entry in found.entries:
            if self._rows.holds(_content(entry)) or time.monotonic() < deadline:
                rows.append(self._rows.get(_content(entry), partial(self._row, entry)))
            else:
                rows.append(PlanRow(entry, None, None, "not read yet; reload the page to go on"))
        return tuple(rows), found.is_complete

    def session_rows(self) -> tuple[PlanRow, ...]:
        """Give a row for every plan of this session, the most recently used first."""
        entries = self.session.entries()
        return tuple(self._rows.get(_content(e), partial(self._row, e)) for e in entries)

    def reports(self) -> tuple[ReportRow, ...]:
        """Give every report of a data set in the folder; unreadable ones with the reason."""
        return tuple(self._report_row(entry) for entry in self.folder.scan().reports)

    def report(self, key: str) -> ReportRow:
        """Give the report with this key.

        Raises:
            DashboardError: if no file has this key.
            DCPError: if the file is no readable report.
        """
        entry = self.folder.find(key, REPORT_SUFFIX)
        if entry is None:
            raise DashboardError(
                f"expected the key of a {REPORT_SUFFIX} file below {self.root}, got {key[:40]!r}; "
                "the file may have been moved or deleted, the list shows what is there"
                f"{self.folder.bounds()}"
            )
        return ReportRow(entry, self._read_report(entry))

    def version(self, key: str) -> str | None:
        """Name the content that the file of a key has now, ``None`` if there is no such file.

        Costs one look at the file, not a walk through the folder, once the key is known.
        """
        entry = self.session.find(key) or self.folder.find(key)
        return None if entry is None else version_of(entry)

    def load(self, key: str) -> LoadedPlan:
        """Give the parsed plan with this key, of the folder or of this session.

        Raises:
            DashboardError: if no file has this key.
            DCPError: if the file is no readable plan.
        """
        kept = self.session.find(key)
        entry = kept or self.folder.find(key, SUFFIX)
        if entry is None:
            raise DashboardError(
                f"expected the key of a {SUFFIX} file below {self.root}, got {key[:40]!r}; the "
                "file may have been moved or deleted, the list shows what is there. Plans that "
                f"were dropped or made on a page are kept until the server ends, {MAX_PLANS} at "
                f"most{self.folder.bounds()}"
            )
        limit = MAX_FILE_BYTES if kept is None else MAX_SESSION_BYTES
        return self._plans.get(_content(entry), lambda: _read(entry, limit))

    def keep(self, content: bytes, name: str) -> LoadedPlan:
        """Keep the bytes of a plan file for this session and give the plan; `load` finds it then.

        Args:
            content: of a `.dcpplan` file, from anywhere.
            name: shown to people; never used as a path.

        Raises:
            DCPError: if it is no readable plan; then nothing is kept.
        """
        entry = self.session.add(content, name)
        try:
            return self.load(entry.key)
        except DCPError as error:
            self.session.discard(entry.key)
            text = str(error).removeprefix(f"plan file {entry.path}: ")
            raise DashboardError(f"{entry.relative}: {text}") from error

    def figures(self, loaded: LoadedPlan) -> BatchFigures:
        """Give the planner's figures of a plan, its bounds included; computed once per content."""
        return self._figures.get(_content(loaded.entry), lambda: figures_of(loaded.plan))

    def time_parts(self, loaded: LoadedPlan) -> TimeParts:
        """Give where the predicted time of a plan goes; predicted anew once per content."""
        return self._time_parts.get(_content(loaded.entry), lambda: split_time(loaded.plan))

    def payload(self, loaded: LoadedPlan, name: str, make: Callable[[LoadedPlan], bytes]) -> bytes:
        """Give bytes made from a plan, from the cache if this content was asked for before."""
        return self._payloads.get((_content(loaded.entry), name), lambda: make(loaded))

    def _read_report(self, entry: PlanEntry) -> DatasetReport:
        return self._reports.get(_content(entry), lambda: read_report(entry.path))

    def _report_row(self, entry: PlanEntry) -> ReportRow:
        try:
            return ReportRow(entry, self._read_report(entry))
        except DCPError as error:
            return ReportRow(entry, None, str(error))

    def _row(self, entry: PlanEntry) -> PlanRow:
        try:
            loaded = self._plans.get(_content(entry), lambda: _read(entry))
        except DCPError as error:
            return PlanRow(entry, None, None, str(error))
        return PlanRow(entry, loaded.summary, loaded.verified)


def version_of(entry: PlanEntry) -> str:
    """Name one content of a file: its size and time of change."""
    return f"{entry.size_bytes}-{entry.mtime_ns}"


def load_file(path: Path) -> LoadedPlan:
    """Give the plan of one file, wherever it lies.

    Raises:
        DashboardError: if there is no such file.
        DCPError: if it is no readable plan.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise DashboardError(
            f"cannot read the plan file {path}: {error.strerror or error}; dcpm plan writes one"
        ) from error
    entry = PlanEntry(plan_key(path.name), path.name, path, found.st_size, found.st_mtime_ns)
    return _read(entry)


def _content(entry: PlanEntry) -> tuple[str, int, int]:
    return str(entry.path), entry.size_bytes, entry.mtime_ns


def _read(entry: PlanEntry, limit_bytes: int = MAX_FILE_BYTES) -> LoadedPlan:
    if entry.size_bytes > MAX_FILE_BYTES:
        raise DashboardError(
            f"{entry.relative}: expected at most {MAX_FILE_BYTES:,} bytes, got "
            f"{entry.size_bytes:,}; plan fewer tokens or larger blocks"
        )
    file = read_plan(entry.path, limit_bytes=min(limit_bytes, LIMIT_BYTES))
    if file.plan.num_devices > MAX_DEVICES:
        raise DashboardError(
            f"{entry.relative}: expected a plan for at most {MAX_DEVICES:,} devices, got "
            f"{file.plan.num_devices:,}; see its numbers with: dcpm simulate {entry.relative}"
        )
    traces: dict[Source, Trace] = {trace.source: trace for trace in file.traces}
    if "simulated" not in traces:
        traces = {"simulated": simulate(file.plan), **traces}
    metrics = measure(file.plan)
    return LoadedPlan(
        entry=entry,
        plan=file.plan,
        traces=traces,
        verified=file.verified,
        totals=device_totals(file.plan, metrics),
        summary=summarise(file.plan, metrics, traces),
    )
