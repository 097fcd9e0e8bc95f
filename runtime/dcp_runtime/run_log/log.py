"""`RunLog`: one JSON line per training step, written by a thread of its own; sinks of other tools.

The training process only puts a small job into a queue. A disk that is full or hangs, or a store
that does not answer, costs records and no training time. A sink is called with every record, on
that thread: ``RunLog(folder, sinks=[...])``. Each sink imports its package when it is made.
"""

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from dcp_dsl.files import replacing
from dcp_planner import Plan, Trace
from dcp_runtime.errors import RunError
from dcp_runtime.run_log.records import NUMBERS, SCHEMA, SUFFIX, StepRecord, as_record

Sink = Callable[[StepRecord], None]


def scalars(record: StepRecord) -> dict[str, float]:
    """Return the numbers that a record has, under names that begin with ``dcp/``."""
    known = {name: record.get(name) for name in NUMBERS if name != "at"}
    return {f"dcp/{name}": value for name, value in known.items() if value is not None}


class TensorBoardLog:
    """Writes events for TensorBoard into a folder; needs ``tensorboard``."""

    def __init__(self, folder: str | Path) -> None:
        module = _package("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder))

    def __call__(self, record: StepRecord) -> None:
        """Write one record."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])


class WandbLog:
    """Logs to a run of Weights & Biases, by default the current one; needs ``wandb``."""

    def __init__(self, run: Any = None) -> None:  # Any: a run of wandb
        self._log = _package("wandb", "wandb").log if run is None else run.log

    def __call__(self, record: StepRecord) -> None:
        """Log one record; wandb's own step is that of the training loop, and stays as it is."""
        self._log(scalars(record) | {"dcp/step": record["step"]})


class MLflowLog:
    """Logs to the MLflow run of an id; needs ``mlflow``."""

    def __init__(self, run_id: str) -> None:
        self._client, self._run_id = _package("mlflow", "mlflow").MlflowClient(), run_id

    def __call__(self, record: StepRecord) -> None:
        """Log one record."""
        for name, value in scalars(record).items():
            self._client.log_metric(self._run_id, name, value, step=record["step"])


class PrometheusLog:
    """Keeps a text file of gauges for node_exporter's textfile collector; needs no package."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, record: StepRecord) -> None:
        """Replace the file; a reader sees all of one record."""
        numbers = {name.replace("/", "_"): value for name, value in scalars(record).items()}
        lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in numbers.items()]
        with replacing(self._path, RunError) as draft:  # node_exporter may read at any time
            draft.write_text("".join(lines))


def _package(module: str, name: str) -> Any:  # Any: a module without types
    try:
        return import_module(module)
    except ImportError as error:
        raise RunError(f"this sink needs {name}, which is missing: pip install {name}") from error


MOST_WAITING = 256  # steps that wait for the thread; further steps are dropped and counted
MOST_TAIL_BYTES = 1 << 16  # bytes at the end of a file that are searched for its last record

logger = logging.getLogger(__name__)


class RunLog:
    """The log of a run: a folder with a file of JSON lines, and plans with traces beside it.

    Give `DCPExecutor` one on every rank; the first rank of each replica writes. A run that is
    started again goes on in the same file, behind a header line of its own.

    Args:
        folder: of the run; made if it is missing. `dcpm top` and `dcpm dashboard` take it.
        rotate_bytes: size at which a new file is begun.
        keep: number of older files, ``run.dcprun.jsonl.1`` and so on.
        traces: number of plans that are kept with their traces.
        sinks: called with every record as well; a sink that fails ends the log like a full disk.

    Raises:
        RunError: if a number is too small.

    >>> import tempfile
    >>> log = RunLog(tempfile.mkdtemp())
    >>> log.submit(lambda: log.write({"name": "step 0", "step_s": 0.25}))
    >>> log.flush()
    >>> '"step_s": 0.25' in log.path.read_text()
    True
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        rotate_bytes: int = 64 << 20,
        keep: int = 3,
        traces: int = 16,
        sinks: Sequence[Sink] = (),
    ) -> None:
        if rotate_bytes < 4096 or keep < 0 or traces < 1:
            raise RunError(
                "RunLog: expected rotate_bytes of at least 4096, keep of at least 0 and traces of "
                f"at least 1, got {rotate_bytes}, {keep}, {traces}"
            )
        self.folder = Path(folder)
        self.path = self.folder / f"run{SUFFIX}"
        self._rotate_bytes, self._keep, self._traces = rotate_bytes, keep, traces
        self._sinks = tuple(sinks)
        self._header: dict[str, Any] = {}  # Any: fit for JSON
        # Bounded: a disk that hangs must not fill the memory of the training process.
        self._jobs: queue.Queue[Callable[[], None]] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._file, self._step, self._dropped = -1, 0, 0
        self.is_off = False

    def describe(self, replica: int, header: Mapping[str, Any]) -> None:
        """Set the header line. Each replica but the first writes a file of its own."""
        self._header = dict(header)
        if replica:
            self.path = self.folder / f"run-{replica}{SUFFIX}"

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job on the thread, soon; the first job that fails ends the log, with a warning."""
        if self.is_off:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="run log", daemon=True)
            self._thread.start()
        try:
            self._jobs.put_nowait(job)  # never waits: training goes on if the disk hangs
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if not self.is_off:
                    job()
            # Of any kind: no error of a log may end a training run.
            except Exception as error:
                self.is_off = True
                logger.warning("%s: the log of the run ends here: %s", self.path, error)
            finally:
                self._jobs.task_done()

    def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until all jobs are done, not longer than the timeout."""
        # `Queue.join` has no timeout, and a disk that hangs must not keep the process alive.
        deadline = time.monotonic() + timeout_s
        while self._jobs.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.002)

    def write(self, figures: Mapping[str, Any]) -> None:
        """Append the record of the next step, by one write; for jobs only.

        Raises:
            OSError: if it cannot be written.
        """
        if self._file < 0:
            self._open()
        dropped = {"dropped": self._dropped} if self._dropped else {}
        record = as_record(self._step, figures) | dropped
        line = _line(record)
        if os.fstat(self._file).st_size + len(line) > self._rotate_bytes:
            self._rotate()
        self._append(line)
        self._step += 1
        for sink in self._sinks:
            sink(record)

    @property
    def next_step(self) -> int:
        """Number of the record that is written next; for jobs only."""
        if self._file < 0:
            self._open()
        return self._step

    def keep_trace(self, step: int, plan: Plan, trace: Trace) -> str:
        """Write a plan with its trace and delete the oldest beyond the bound; for jobs only."""
        from dcp_planner import write_plan  # pyarrow: training without traces needs none

        path = self.path.with_name(self.path.name.removesuffix(SUFFIX) + f"-{step:09d}.dcpplan")
        write_plan(path, plan, [trace])
        # Only plans of this log, and with a fixed number of digits names sort by step.
        pattern = path.name.replace(f"{step:09d}", "[0-9]" * 9)
        for old in sorted(self.folder.glob(pattern))[: -self._traces]:
            old.unlink(missing_ok=True)
        return path.name

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        tail = _tail(self._file)
        last = _last_step(tail)
        if last < 0:  # a new file behind a rotation: the last record is in the file before
            with suppress(FileNotFoundError), open(f"{self.path}.1", "rb") as older:
                last = _last_step(_tail(older.fileno()))
        # With `keep=0` a rotation leaves no file that knows the step.
        self._step = max(self._step, last + 1)
        # A process that was killed may have left half a line.
        head = _line({"schema": SCHEMA, "started": round(time.time(), 3), **self._header})
        self._append((b"\n" if tail and not tail.endswith(b"\n") else b"") + head)

    def _append(self, line: bytes) -> None:
        # A single write to a file opened for appending: a reader never sees half a line.
        if os.write(self._file, line) != len(line):
            raise OSError("the disk is full")

    def _rotate(self) -> None:
        os.close(self._file)
        names = [self.path, *(Path(f"{self.path}.{n}") for n in range(1, self._keep + 1))]
        names[-1].unlink(missing_ok=True)
        for newer, older in reversed(list(pairwise(names))):  # the oldest makes room first
            if newer.exists():
                newer.replace(older)
        self._open()


def _line(document: StepRecord) -> bytes:
    return json.dumps(document, allow_nan=False).encode() + b"\n"


def _tail(file: int) -> bytes:
    size = os.fstat(file).st_size
    start = max(0, size - MOST_TAIL_BYTES)
    return os.pread(file, size - start, start)


def _last_step(tail: bytes) -> int:
    return max(map(_step_of, tail.split(b"\n")))


def _step_of(line: bytes) -> int:
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return -1
    return step if isinstance(step, int) else -1
