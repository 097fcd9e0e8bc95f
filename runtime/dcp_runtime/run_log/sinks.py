"""Sends the records of a log to other tools as well; each needs its own package, and only then.

A sink is called with every record, on the thread of the log: ``RunLog(folder, sinks=[...])``.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dcp_runtime.errors import RunError
from dcp_runtime.run_log.record import NUMBERS, Record

Sink = Callable[[Record], None]


def scalars(record: Record) -> dict[str, float]:
    """Return the numbers that a record has, under names that begin with ``dcp/``.

    >>> scalars({"step": 3, "step_s": 0.5, "queued": None})
    {'dcp/step_s': 0.5}
    """
    known = {name: record.get(name) for name in NUMBERS if name != "at"}
    return {f"dcp/{name}": value for name, value in known.items() if value is not None}


class TensorBoardLog:
    """Writes events for TensorBoard into a folder; needs ``tensorboard``."""

    def __init__(self, folder: str | Path) -> None:
        module = _package("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder))

    def __call__(self, record: Record) -> None:
        """Write one record."""
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])


class WandbLog:
    """Logs to a run of Weights & Biases, by default the one under way; needs ``wandb``."""

    def __init__(self, run: Any = None) -> None:  # Any: a run of wandb
        self._log = _package("wandb", "wandb").log if run is None else run.log

    def __call__(self, record: Record) -> None:
        """Log one record; steps of the training loop stay its own."""
        self._log(scalars(record) | {"dcp/step": record["step"]})


class MLflowLog:
    """Logs to the MLflow run of an id; needs ``mlflow``."""

    def __init__(self, run_id: str) -> None:
        self._client, self._run_id = _package("mlflow", "mlflow").MlflowClient(), run_id

    def __call__(self, record: Record) -> None:
        """Log one record."""
        for name, value in scalars(record).items():
            self._client.log_metric(self._run_id, name, value, step=record["step"])


class PrometheusLog:
    """Keeps a text file of gauges for node_exporter's textfile collector; needs no package."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def __call__(self, record: Record) -> None:
        """Replace the file; whoever reads it sees one record."""
        numbers = {name.replace("/", "_"): value for name, value in scalars(record).items()}
        lines = [f"# TYPE {name} gauge\n{name} {value}\n" for name, value in numbers.items()]
        draft = self._path.with_name(self._path.name + ".draft")
        draft.write_text("".join(lines))
        draft.replace(self._path)


def _package(module: str, name: str) -> Any:  # Any: a module without types
    try:
        return import_module(module)
    except ImportError as error:
        raise RunError(f"this sink needs {name}, which is missing: pip install {name}") from error
