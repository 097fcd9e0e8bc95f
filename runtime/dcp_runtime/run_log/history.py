"""Reads the log of a run while it is written: columns of numbers, bounded, and only what is new."""

import json
import math
import os
from array import array
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from dcp_dsl.arrays import Floats
from dcp_runtime.errors import RunError
from dcp_runtime.run_log.log import SUFFIX
from dcp_runtime.run_log.record import NUMBERS, TEXTS

MOST_RECORDS = 200_000
"""Steps that are kept; older ones are forgotten."""
MOST_LINE_BYTES = 8192
MOST_TEXT = 160
MOST_OLDER = 9
"""Older files of a rotated log that are read."""
CHUNK_BYTES = 1 << 20
MOST_TRACED = 64
RECENT = 50
"""Steps that `summary` takes medians over."""


class RunHistory:
    """The records of a log, in the order of their steps.

    A line that is cut off, too long or no record is passed over; a value that is no finite number
    is NaN. Not safe to use from several threads.

    Args:
        path: of the newest file of the log; older ones lie beside it.

    Attributes:
        traced: the newest steps whose plan was kept with its trace.
        dropped: steps without a record, because the disk was too slow.
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
        """Read what was written since the last call, also where the log was rotated meanwhile.

        Raises:
            RunError: if the log cannot be read.
        """
        older = [Path(f"{self._path}.{number}") for number in range(MOST_OLDER, 0, -1)]
        try:
            # All are opened before the first is read: a rotation renames files, not what is open.
            with ExitStack() as stack:
                paths = *filter(Path.is_file, older), self._path
                files = [stack.enter_context(open(path, "rb", opener=_open)) for path in paths]
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
        """Return one record, ``None`` for what is unknown; empty if there is no such step."""
        at = int(np.searchsorted(self.column("step"), step))
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
        """Write `summary` for people: what, and its figures."""
        return _sentences(self.summary())

    def _read(self, inode: int, file: BinaryIO) -> None:
        """Read on in a file, or from its start; what another one left of a line is lost."""
        if inode != self._inode:
            self._inode, self._offset, self._rest = inode, 0, b""
        file.seek(self._offset)
        while chunk := file.read(CHUNK_BYTES):
            self._offset += len(chunk)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._add(line)
            if len(self._rest) > MOST_LINE_BYTES:  # it is passed over when it ends
                self._rest = b" " * (MOST_LINE_BYTES + 1)

    def _add(self, line: bytes) -> None:
        try:
            found = json.loads(line) if len(line) <= MOST_LINE_BYTES else None
        except (ValueError, RecursionError):
            return
        if not isinstance(found, dict):
            return
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


def _sentences(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    last, medians = summary["last"], summary["medians"]
    if not last:
        return [("Step", "none yet")]

    def seconds(name: str) -> str:
        return f"{_seconds(last[name])}, median {_seconds(medians.get(name))}"

    measured, predicted = last["measured_s"], last["predicted_s"]
    ratio = f", {measured / predicted:.3g} times the predicted" if measured and predicted else ""
    exposed, slowest = last["exposed_share"], last["slowest"]
    return [
        ("Step", f"{last['step']} · {last.get('name', '')}"),
        ("Step time", seconds("step_s")),
        ("Attention, measured", seconds("measured_s") + ratio),
        ("Attention, predicted", seconds("predicted_s")),
        ("Waiting, most of a rank", "-" if exposed is None else f"{exposed:.1%} of its attention"),
        ("Slowest rank", "-" if slowest is None else f"{slowest:.0f}: {last.get('why', '')}"),
        ("Plans under way", f"{_count(last['queued'])}; processes lost: {_count(last['lost'])}"),
        ("Planning the batch", f"{_seconds(last['planning_s'])}, waited for {seconds('waited_s')}"),
        ("Rows left out", _count(last["skipped"])),
    ]


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _seconds(number: float | None) -> str:
    if number is None:
        return "-"
    return f"{number:.3g} s" if number >= 1 else f"{1e3 * number:.3g} ms"


def _open(path: str, flags: int) -> int:
    # A pipe of that name must not hold up the reader.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**63:
        return math.nan
    return float(value) if math.isfinite(value) else math.nan


def _text(value: object) -> str:
    return "".join(c for c in str(value)[:MOST_TEXT] if c.isprintable()) if value else ""
