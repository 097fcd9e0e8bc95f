"""`PlanLibrary` reads each plan and report once and keeps the results in bounded caches.

The keys of the caches are path, size and modification time, so an overwritten file is read anew at
the next request.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from math import isclose
from pathlib import Path
from typing import Generic, TypeAlias, TypeVar

from dcp_dashboard.library.folder import (
    MAX_PLANS,
    REPORT_SUFFIX,
    RUN_SUFFIX,
    STEP_SUFFIX,
    SUFFIX,
    DashboardError,
    Folder,
    PlanEntry,
    SessionPlans,
    plan_key,
)
from dcp_dashboard.library.index import (
    DatasetReport,
    FileRow,
    PlanIndex,
    PlanRow,
    read_line,
    read_report,
)
from dcp_dashboard.library.summary import DeviceTotals, PlanSummary, device_totals, summarise
from dcp_dsl import DCPError
from dcp_planner import Plan, Provenance, Source, Trace, measure, read_plan, simulate
from dcp_planner.causes import CLOSE, Why, find_causes, find_causes_of_run
from dcp_planner.report import BatchFigures, figures_of
from dcp_planner.step import StepFile, read_step
from dcp_runtime import RunHistory

MAX_FILE_BYTES = 2**30
"""Most bytes of a file, and of what each of its tables unpacks to."""
MAX_SESSION_BYTES = 2**28
"""The same for files that a browser sent: a small file can claim to unpack to much."""
MAX_DEVICES = 1024
"""Most devices of a plan that is shown: traffic has a cell for every two of them."""

Value = TypeVar("Value")


@dataclass(frozen=True, eq=False)  # no slots: the cached properties need a `__dict__`
class LoadedPlan:
    """A parsed plan file and the figures that the pages compute from it.

    The trace `simulated` is always there: it is computed if the file does not hold it.
    """

    entry: PlanEntry
    plan: Plan
    traces: Mapping[Source, Trace]
    totals: DeviceTotals
    summary: PlanSummary

    @property
    def provenance(self) -> Provenance | None:
        """The origin of the plan if it holds the text of its mask, else ``None``."""
        found = self.plan.provenance
        return found if found is not None and found.spec.strip() else None

    @cached_property
    def figures(self) -> BatchFigures:
        """The planner's figures of the plan, its lower bounds included."""
        return figures_of(self.plan)

    @cached_property
    def predicted(self) -> Why:
        """The causes of the plan's time as the planner predicts it now."""
        return find_causes(self.plan)

    @cached_property
    def recorded(self) -> Mapping[Source, Why]:
        """The causes of the time of each trace and its critical path, from the trace alone."""
        return {name: find_causes_of_run(self.plan, trace) for name, trace in self.traces.items()}

    def is_predicted(self, source: Source) -> bool:
        """Tell whether a trace is what the planner predicts now.

        A file may be older than the planner's model, or hold a prediction for other constants.
        """
        if source == "measured":
            return False
        stored, present = self.traces[source].seconds(), self.predicted.diagnosis.seconds
        return isclose(stored, present, rel_tol=CLOSE)

    def why(self, source: Source) -> Why:
        """Return the causes of a trace's time: by predicting again if the trace is a prediction."""
        return self.predicted if self.is_predicted(source) else self.recorded[source]


ReportRow = FileRow[DatasetReport]
Run: TypeAlias = tuple[PlanEntry, RunHistory]
"""The log of a training run, and the records that were read from it."""


class BoundedCache(Generic[Value]):
    """A mapping that forgets the entry used longest ago; safe to use from several threads.

    Eight threads of the server may ask for one value at once. Only the first makes it.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, Future[Value]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        """Return the value of `key`, made by `make` if unknown.

        Only those who ask for the same key wait for its maker, which must not ask for it itself.
        """
        with self._lock:
            # The lock is held to register who makes a value, not while it is made.
            is_known = key in self._values
            value = self._values.setdefault(key, Future())
            self._values.move_to_end(key)
            while len(self._values) > self._capacity:
                self._values.popitem(last=False)
        if not is_known:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    # Threads that wait get the error; the next request tries again. The key may
                    # have been pushed out meanwhile, and have another maker by now.
                    if self._values.get(key) is value:
                        del self._values[key]
                value.set_exception(error)
        return value.result()


class PlanLibrary:
    """Reads plan files for the pages and the data API; no other class opens them."""

    def __init__(self, root: Path) -> None:
        self.folder = Folder(root)
        self.index = PlanIndex(self.folder)
        self.session = SessionPlans()
        self._plans = BoundedCache[LoadedPlan](8)
        self._payloads = BoundedCache[bytes](32)
        self._thumbnails = BoundedCache[bytes](4_096)
        self._reports = BoundedCache[DatasetReport](16)
        self._runs = BoundedCache[tuple[RunHistory, threading.Lock]](4)

    @property
    def root(self) -> Path:
        """The served folder, resolved."""
        return self.folder.root

    def session_rows(self) -> list[PlanRow]:
        """Return a row for each plan of this session, the most recently used first."""
        return [FileRow.read(entry, read_line) for entry in self.session.entries()]

    def reports(self) -> list[ReportRow]:
        """Return a row for every report of a data set."""
        return [
            FileRow.read(entry, self._read_report) for entry in self.folder.files(REPORT_SUFFIX)
        ]

    def report(self, key: str) -> tuple[PlanEntry, DatasetReport]:
        """Return the report with this key, and its file; errors as of `load`."""
        entry = self._find(key, REPORT_SUFFIX)
        return entry, self._read_report(entry)

    def step(self, key: str) -> tuple[PlanEntry, StepFile]:
        """Return the planned step with this key, and its file; errors as of `load`."""
        entry = self._find(key, STEP_SUFFIX)
        return entry, read_step(entry.path)

    def read_runs(self, keys: Sequence[str], read: Callable[[Sequence[Run]], Value]) -> Value:
        """Return the result of `read` on the logs with these keys, as far as they are written.

        Each log is locked meanwhile. Two keys may name one log: a file and a link to it. Errors are
        those of `load`.
        """
        entries = [self._find(key, RUN_SUFFIX) for key in keys]
        histories = {entry.path: self._history(entry.path) for entry in entries}
        with ExitStack() as stack:
            # In the order of the paths: else two requests for the same two logs could each hold one
            # and wait for the other.
            for path in sorted(histories):
                history, lock = histories[path]
                stack.enter_context(lock)
                history.update()
            return read([(entry, histories[entry.path][0]) for entry in entries])

    def _history(self, path: Path) -> tuple[RunHistory, threading.Lock]:
        # One history for each path, not for each content: a log only grows, and `update` reads on
        # from where it stopped. Each has a lock of its own, since histories change.
        return self._runs.get(path, lambda: (RunHistory(path), threading.Lock()))

    def _find(self, key: str, suffix: str, more: str = "") -> PlanEntry:
        entry = self.folder.find(key, suffix)
        if entry is None:
            raise DashboardError(
                f"expected the key of a {suffix} file below {self.root}, got {key[:40]!r}; the "
                f"file may have been moved or deleted, the list shows what is there{more}"
                f"{self.folder.bounds()}"
            )
        return entry

    def version(self, key: str) -> str | None:
        """Return the version of the file with this key, ``None`` if there is none; one `stat`."""
        entry = self.session.find(key) or self.folder.find(key)
        return None if entry is None else version_of(entry)

    def load(self, key: str) -> LoadedPlan:
        """Return the plan with this key, of folder or session; `DCPError` if none is readable."""
        entry, limit = self._plan_file(key)
        return self._plans.get(_content(entry), lambda: _read(entry, limit))

    def thumbnail(self, key: str, make: Callable[[Plan], bytes]) -> bytes:
        """Return the small picture of a plan, made by `make` if it is not in the cache.

        A list asks for fifty of them: they are read beside the cache of plans, so as to push none
        out that people look at, and not simulated.
        """
        entry, limit = self._plan_file(key)
        return self._thumbnails.get(_content(entry), lambda: make(_read_file(entry, limit)[0]))

    def _plan_file(self, key: str) -> tuple[PlanEntry, int]:
        """Return the file of a plan and the most bytes that it may unpack to."""
        kept = self.session.find(key)
        if kept is not None:
            return kept, MAX_SESSION_BYTES
        more = (
            ". Plans that were dropped or made on a page are kept until the server ends, "
            f"{MAX_PLANS} at most"
        )
        return self._find(key, SUFFIX, more), MAX_FILE_BYTES

    def keep(self, content: bytes, name: str) -> LoadedPlan:
        """Keep the bytes of a plan file for this session; `DCPError` if it is none."""
        # The reader takes a path, so the bytes become a file before anybody has checked them.
        entry = self.session.add(content, name)
        try:
            return self.load(entry.key)
        except DCPError as error:
            self.session.discard(entry.key)
            # The reader names the temporary file; people know the name that they gave it.
            raise DashboardError(error.reason, entry.relative) from error

    def payload(self, loaded: LoadedPlan, name: str, make: Callable[[], bytes]) -> bytes:
        """Return bytes about a plan by their name, made by `make` if this content has none yet."""
        return self._payloads.get((_content(loaded.entry), name), make)

    def _read_report(self, entry: PlanEntry) -> DatasetReport:
        return self._reports.get(_content(entry), lambda: read_report(entry.path))


def version_of(entry: PlanEntry) -> str:
    """Return the version of a file: its size and time of change."""
    return f"{entry.size_bytes}-{entry.mtime_ns}"


def load_file(path: Path) -> LoadedPlan:
    """Return the plan of one file, in any folder; `DCPError` if it is no readable plan."""
    try:
        found = path.stat()
    except OSError as error:
        raise DashboardError(
            f"cannot read the plan file {path}: {error.strerror or error}; dcpm plan writes one"
        ) from error
    entry = PlanEntry(plan_key(path.name), path.name, path, found.st_size, found.st_mtime_ns)
    return _read(entry, is_foreign=None)


def _content(entry: PlanEntry) -> tuple[str, int, int]:
    return str(entry.path), entry.size_bytes, entry.mtime_ns


def _read(
    entry: PlanEntry, limit_bytes: int = MAX_FILE_BYTES, *, is_foreign: bool | None = True
) -> LoadedPlan:
    plan, traces = _read_file(entry, limit_bytes, is_foreign=is_foreign)
    return loaded_plan(entry, plan, traces)


def _read_file(
    entry: PlanEntry, limit_bytes: int, *, is_foreign: bool | None = True
) -> tuple[Plan, tuple[Trace, ...]]:
    """Read plan and traces within the limits of a page; by default a worker decodes the tables."""
    if entry.size_bytes > MAX_FILE_BYTES:
        raise DashboardError(
            f"expected at most {MAX_FILE_BYTES:,} bytes, got {entry.size_bytes:,}; plan fewer "
            "tokens or larger blocks",
            entry.relative,
        )
    file = read_plan(entry.path, limit_bytes=limit_bytes, is_foreign=is_foreign)
    devices = file.plan.num_devices
    if devices > MAX_DEVICES:
        raise DashboardError(
            f"expected a plan for at most {MAX_DEVICES:,} devices, got {devices:,}; see "
            f"its numbers with: dcpm simulate {entry.relative}",
            entry.relative,
        )
    return file.plan, file.traces


def loaded_plan(entry: PlanEntry, plan: Plan, recorded: Iterable[Trace]) -> LoadedPlan:
    """Compute the figures of a plan for its pages, simulating it if no trace is simulated."""
    traces: dict[Source, Trace] = {trace.source: trace for trace in recorded}
    if "simulated" not in traces:
        traces = {"simulated": simulate(plan), **traces}
    metrics = measure(plan)
    summary = summarise(plan, metrics, traces)
    return LoadedPlan(entry, plan, traces, device_totals(plan, metrics), summary)
