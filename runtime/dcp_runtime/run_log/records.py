"""The records of a run: how one is made for each training step, and `RunHistory`, which reads them.

A record holds predictions of the plans, measurements of the ranks, and the slowest rank. Records
can be read while the log is written. `RunHistory` reads only new lines, into bounded columns.
"""

import json
import math
import os
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_planner.model import is_of_another_machine
from dcp_runtime.errors import RunError

SCHEMA = "dcp.run_log/1"
SUFFIX = ".dcprun.jsonl"  # ends the names of logs
StepRecord: TypeAlias = dict[str, Any]  # Any: fit for JSON

NUMBERS = (
    "at", "step_s", "predicted_s", "measured_s", "attention_s", "other_s", "waiting_s", "idle_s",
    "exposed_share", "tokens", "token_imbalance", "compute_imbalance", "attention_imbalance",
    "bytes", "planning_s", "waited_s", "queued", "lost", "skipped", "slowest",
)  # fmt: skip
"""Numbers of a record, ``None`` where they are unknown; names of seconds end in ``_s``."""
TEXTS = ("name", "digest", "cause", "why", "trace", "cluster", "machine")
"""Texts of a record; `cluster` is what the plans were made for, `machine` what computed them."""

EVEN = 1.05  # ranks that compute at most this much longer than their mean count as equally long


class RankTotals(NamedTuple):
    """Work and times of one rank in a step, all its layers together."""

    step_s: float  # from `prepare` of the batch to the next `prepare`
    work: int  # visible pairs that it computed, forward
    attention_s: float | None = None  # None where only a device knows, and nothing was recorded
    other_s: float = 0.0  # in reductions, copies and launches
    waiting_s: float = 0.0  # in which it stood still for messages
    late_rank: int = -1  # whose messages cost it most waiting, -1 for none
    late_s: float = 0.0  # that time

    @property
    def busy_s(self) -> float:
        """Seconds of its attention calls in which it did not wait."""
        return (self.attention_s or 0.0) + self.other_s


class PlanFacts(NamedTuple):
    """A plan in numbers, for one layer; pairs of numbers are those of forward and backward."""

    size_bytes: tuple[int, int]  # sent between devices
    most_work: int  # visible pairs of the device with most of them
    mean_work: float  # over the devices
    most_tokens: int  # of the device that owns most
    mean_tokens: float
    predicted_s: tuple[float, ...] = ()  # empty without a prediction


def planned_figures(facts: Sequence[PlanFacts], calls: Sequence[tuple[int, int]]) -> StepRecord:
    """Add up the predictions of a batch's plans, given the forward and backward calls of each."""
    called = list(zip(facts, calls, strict=True))
    found: StepRecord = {
        "bytes": sum(n * size for f, c in called for n, size in zip(c, f.size_bytes, strict=True)),
        "token_imbalance": _ratio(facts[0].most_tokens, facts[0].mean_tokens),
        "compute_imbalance": _ratio(
            sum(c[0] * f.most_work for f, c in called), sum(c[0] * f.mean_work for f, c in called)
        ),
    }
    if all(f.predicted_s for f in facts):
        found["predicted_s"] = sum(
            n * s for f, c in called for n, s in zip(c, f.predicted_s, strict=True)
        )
    return found


def measured_figures(totals: Sequence[RankTotals]) -> StepRecord:
    """Put the totals of all ranks together.

    ``measured_s`` is the time that the slowest rank spent in attention calls. The means over the
    ranks of ``attention_s``, ``other_s``, ``waiting_s`` and ``idle_s`` add up to it; a rank is idle
    from the end of its calls to the end of those of the slowest rank.
    """
    found: StepRecord = {"step_s": max((t.step_s for t in totals), default=None)}
    if not totals or any(t.attention_s is None for t in totals):
        return found
    calls = [t.busy_s + t.waiting_s for t in totals]
    attention = [t.attention_s or 0.0 for t in totals]
    measured = max(calls)
    shares = [t.waiting_s / c for t, c in zip(totals, calls, strict=True) if c]
    found |= {
        "measured_s": measured,
        "attention_s": fmean(attention),
        "other_s": fmean(t.other_s for t in totals),
        "waiting_s": fmean(t.waiting_s for t in totals),
        "idle_s": measured - fmean(calls),
        "exposed_share": max(shares, default=0.0),
        "attention_imbalance": _ratio(max(attention), fmean(attention)),
    }
    return found | explain(totals)


def explain(totals: Sequence[RankTotals]) -> StepRecord:
    """Name the rank for which the others wait, and the cause.

    >>> explain([RankTotals(1, 10, 0.2, 0, 0.2, 1, 0.2), RankTotals(1, 30, 0.6)])["why"]
    'rank 1 has 1.50 times the mean work'
    """
    busy = [t.busy_s for t in totals]
    slowest = busy.index(max(busy))
    if _ratio(busy[slowest], fmean(busy)) <= EVEN:
        # No rank computes longer, but the messages of one may come late, over a slow link.
        waits = max(range(len(totals)), key=lambda rank: totals[rank].waiting_s)
        late, late_s = totals[waits].late_rank, totals[waits].late_s
        if late < 0 or late_s <= (EVEN - 1) * (totals[waits].busy_s + totals[waits].waiting_s):
            return {"slowest": slowest, "cause": "even", "why": "all ranks compute equally long"}
        why = f"rank {waits} waits most, for messages of rank {late}; all compute equally long"
        return {"slowest": late, "cause": "messages", "why": why}
    # Longer for more work, or for the same work: the larger factor is the cause.
    share = _ratio(totals[slowest].work, fmean(t.work for t in totals))
    others = [t.busy_s / t.work for n, t in enumerate(totals) if t.work and n != slowest]
    rate = _ratio(busy[slowest], totals[slowest].work)
    slower = _ratio(rate, median(others)) if others else 1.0
    if share >= slower:
        cause, why = "work", f"rank {slowest} has {share:.2f} times the mean work"
    else:
        why = f"rank {slowest} takes {slower:.2f} times as long as the others for the same work"
        cause = "rate"
    return {"slowest": slowest, "cause": cause, "why": why}


def as_record(step: int, figures: Mapping[str, Any]) -> StepRecord:
    """Return a record with every field, in order, numbers to six digits."""
    found: StepRecord = {"step": step}
    for name in (*NUMBERS, *TEXTS):
        value = figures.get(name)
        is_long = isinstance(value, float) and name != "at"
        found[name] = float(f"{value:.6g}") if is_long else value
    return found


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0


MOST_RECORDS = 200_000  # steps that are kept; older steps are forgotten
MOST_LINE_BYTES = 8192
MOST_TEXT = 160
MOST_OLDER = 9  # largest number of an older file of a rotated log that is read
CHUNK_BYTES = 1 << 20
MOST_TRACED = 64
RECENT = 50  # steps that `summary` takes medians over


class RunHistory:
    """The records of a log, in the order of their steps.

    Lines that are cut off, too long or no records are passed over; a value that is no finite number
    becomes NaN. One instance is for one thread.

    Args:
        path: of the newest file of the log; older ones lie beside it.

    Attributes:
        traced: the newest steps whose plan was kept with its trace.
        dropped: number of steps without a record, because the disk was too slow.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._inode, self._offset, self._rest = -1, 0, b""
        self._columns = {name: array("d") for name in ("step", *NUMBERS)}
        self._texts: dict[int, dict[str, str]] = {}
        self.traced: deque[int] = deque(maxlen=MOST_TRACED)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._columns["step"])

    def update(self) -> None:
        """Read the lines since the last call, also where the log was rotated meanwhile.

        Raises:
            RunError: if the log cannot be read.
        """
        older = [Path(f"{self._path}.{number}") for number in range(MOST_OLDER, 0, -1)]
        try:
            # All files are opened before the first is read: a rotation renames them, but an open
            # file stays the same.
            with ExitStack() as stack:
                paths = *filter(Path.is_file, older), self._path
                files = [stack.enter_context(open(path, "rb", opener=_open)) for path in paths]
                # From the file that was read last, whatever its name is now, to the newest.
                inodes = [os.fstat(file.fileno()).st_ino for file in files]
                known = inodes.index(self._inode) if self._inode in inodes else 0
                for inode, file in zip(inodes[known:], files[known:], strict=True):
                    self._read(inode, file)
        except OSError as error:
            reason = error.strerror or error
            raise RunError(
                f"cannot read the log of the run {self._path}: {reason}; DCPExecutor(run_log="
                "RunLog(FOLDER)) writes one"
            ) from error
        surplus = len(self) - MOST_RECORDS
        if surplus > 0:
            for step in islice(self._columns["step"], surplus):
                self._texts.pop(int(step), None)
            for column in self._columns.values():
                del column[:surplus]

    def column(self, name: str) -> Floats:
        """Return a number of all steps, ``"step"`` among them, float64 ``[N]``."""
        return np.array(self._columns[name])

    def record(self, step: int) -> dict[str, float | str | None]:
        """Return one record, with ``None`` for unknown values; empty if there is no such step."""
        at = int(np.searchsorted(self.column("step"), step))  # steps only grow, see `_add`
        if at == len(self) or self._columns["step"][at] != step:
            return {}
        numbers = {name: column[at] for name, column in self._columns.items()}
        known = {name: None if math.isnan(n) else n for name, n in numbers.items()}
        return {**known, "step": step, **self._texts.get(step, {})}

    @property
    def last(self) -> dict[str, float | str | None]:
        """The newest record; empty if there is none."""
        return self.record(int(self._columns["step"][-1])) if len(self) else {}

    def summary(self) -> dict[str, Any]:  # Any: fit for JSON
        """Return the newest record, and medians over the latest steps; fit for JSON."""
        medians: dict[str, float | None] = {}
        for name in ("step_s", "predicted_s", "measured_s", "exposed_share", "waited_s"):
            recent = np.array(self._columns[name][-RECENT:])
            known = recent[~np.isnan(recent)]
            medians[name] = float(np.median(known)) if len(known) else None
        return {"steps": len(self), "last": self.last, "medians": medians, "dropped": self.dropped}

    def sentences(self) -> list[tuple[str, str]]:
        """Return the lines of `summary` for people: a label, and its figures."""
        summary = self.summary()
        last, medians = summary["last"], summary["medians"]
        if not last:
            return [("Step", "none yet")]

        def seconds(name: str) -> str:
            return f"{_seconds(last[name])}, median {_seconds(medians.get(name))}"

        measured, predicted = last["measured_s"], last["predicted_s"]
        cluster, machine = last.get("cluster", ""), last.get("machine", "")
        is_unlike = is_of_another_machine(cluster, machine or cluster)
        is_known = measured and predicted and not is_unlike
        ratio = f", {measured / predicted:.3g} times the prediction" if is_known else ""
        place = f", for {cluster}" * bool(cluster)
        if is_unlike:
            place += f", not comparable: this is {machine}"
        share, slowest = last["exposed_share"], last["slowest"]
        planning = f"{_seconds(last['planning_s'])}, training waited {seconds('waited_s')}"
        return [
            ("Step", f"{last['step']} · {last.get('name', '')}"),
            ("Step time", seconds("step_s")),
            ("Attention, measured", seconds("measured_s") + ratio),
            ("Attention, predicted", seconds("predicted_s") + place),
            ("Waiting, worst rank", "-" if share is None else f"{share:.1%} of its attention"),
            ("Slowest rank", "-" if slowest is None else f"{slowest:.0f}: {last.get('why', '')}"),
            (
                "Plans in progress",
                f"{_count(last['queued'])}; lost processes: {_count(last['lost'])}",
            ),
            ("Planning time", planning),
            ("Skipped rows", _count(last["skipped"])),
        ]

    def _read(self, inode: int, file: BinaryIO) -> None:
        """Read on in a file, or a new file from its start; half a line of another file is lost."""
        if inode != self._inode:
            self._inode, self._offset, self._rest = inode, 0, b""
        file.seek(self._offset)
        while chunk := file.read(CHUNK_BYTES):
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._add(line)
            # A line without an end must not fill memory: as so many blanks it stays too long.
            if len(self._rest) > MOST_LINE_BYTES:
                self._rest = b" " * (MOST_LINE_BYTES + 1)

    def _add(self, line: bytes) -> None:
        try:
            found = json.loads(line) if len(line) <= MOST_LINE_BYTES else None
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
        # Columns are doubles, which hold whole numbers below 2**53 exactly. True is an int, too.
        step = found.get("step")
        if type(step) is not int or not 0 <= step < 2**53:
            return
        if len(self) and step <= self._columns["step"][-1]:
            return
        self._columns["step"].append(step)
        for name in NUMBERS:
            self._columns[name].append(_number(found.get(name)))
        self._texts[step] = {name: text for name in TEXTS if (text := _text(found.get(name)))}
        if "trace" in self._texts[step]:
            self.traced.append(step)
        self.dropped = int(np.nan_to_num(_number(found.get("dropped", self.dropped))))


def find_logs(folder: str | Path) -> list[Path]:
    """Return the logs in the folder of a run, that of its first replica first."""
    found = sorted(Path(folder).glob(f"*{SUFFIX}"), key=lambda path: (len(path.name), path.name))
    if not found:
        raise RunError(
            f"expected the folder of a run with a file *{SUFFIX}, got {folder}; "
            "DCPExecutor(run_log=RunLog(FOLDER)) writes one"
        )
    return found


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _seconds(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.3g} s" if number >= 1 else f"{1e3 * number:.3g} ms"


def _open(path: str, flags: int) -> int:
    # A pipe of that name must not hold up the reader, nor a link lead it out of the folder.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**63:
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def _text(value: object) -> str:
    return "".join(c for c in str(value)[:MOST_TEXT] if c.isprintable()) if value else ""
