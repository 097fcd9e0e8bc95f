"""How far a training run has come, in checkpoints and in the loader's epochs of unequal length."""

from collections.abc import Iterator
from itertools import count, repeat
from typing import Any, NamedTuple, Self

from torch.utils.data import IterableDataset

from dcp_runtime.data.dataloader import DCPDataloader
from dcp_runtime.data.progress import State
from dcp_runtime.errors import RunError

PROGRESS = "DCPProgress"
"""The key of the place in `trainer_state.json`, among the states of callbacks."""


class TrainingPlace(NamedTuple):
    """How far training has come: steps and batches of an epoch, and the state of the loader."""

    epoch: int = 0
    steps: int = 0
    batches: int = 0
    loader: State | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the loader has given the whole epoch."""
        return self.loader is not None and self.loader["epoch"] != self.epoch


def progress_callback(trainer: Any) -> Any:  # Any: transformers'
    """Return the callback that saves how far training has come."""
    from transformers.trainer_callback import ExportableState, TrainerCallback

    class DCPProgress(TrainerCallback, ExportableState):
        def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            trainer._end_epoch(control.should_training_stop)

        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": trainer._progress()}

    return DCPProgress()


def saved_place(state: Any, checkpoint: str) -> TrainingPlace | None:  # Any: the trainer's state
    """Return the place that a checkpoint holds, if it is of the checkpoint's step."""
    held = state.stateful_callbacks.setdefault(PROGRESS, {})
    saved = held.get("attributes", {}) if isinstance(held, dict) else {}
    if saved.get("global_step") != state.global_step:
        return None
    place = TrainingPlace(*(saved.get(name) for name in TrainingPlace._fields))  # type: ignore[arg-type] # checked
    counts = [*place[:3], 0 if place.loader is None else place.loader.get("epoch")]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise RunError(
            f"DCPTrainerMixin: expected {PROGRESS} in {checkpoint} to hold counts, got {counts}; "
            "resume from another checkpoint"
        )
    return place


def is_sized(loader: DCPDataloader) -> bool:
    """Return whether the loader can tell how many batches an epoch has."""
    try:
        return len(loader) >= 0
    except TypeError:  # a stream of rows
        return False


def steps_of_epochs(loader: DCPDataloader, size: int) -> Iterator[int]:
    """Count the steps of every epoch, of `size` batches each."""
    for epoch in count():
        loader.set_epoch(epoch)
        yield max(1, -(-len(loader) // size))


class EpochBatches(IterableDataset[Any]):  # Any: what the loader gives, or nothing
    """The batches of an epoch: as many empty ones as a checkpoint is behind, then the others.

    Leave it as a context: the loader counts batches of the epoch under way until that is closed.
    """

    def __init__(self, passed: int, loader: DCPDataloader | None) -> None:
        self._passed = passed
        self._left: Any = () if loader is None else iter(loader)  # Any: a generator

    def __iter__(self) -> Iterator[Any]:
        yield from repeat(None, self._passed)
        yield from self._left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._left:
            self._left.close()
