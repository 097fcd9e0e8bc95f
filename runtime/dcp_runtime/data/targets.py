"""Which token of a packed batch predicts which, and a word about targets that are left out."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.data.batches import PackedSequence
from dcp_runtime.data.choices import RowRules
from dcp_runtime.data.screening import Screening
from dcp_runtime.data.successors import Runs
from dcp_runtime.data.token_columns import IGNORE_LABEL, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Targets:
    """The targets of a packed batch, over all ranks.

    Attributes:
        row: int64 ``[N]``, packed position of the token that predicts; one may have several.
        token: int64 ``[N]``, packed position of the token that is predicted.
        id: int64 ``[N]``, the token id to predict.
        weight: float32 ``[N]``, what the loss of each is multiplied by.
    """

    row: Ints
    token: Ints
    id: Ints
    weight: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.row)

    @classmethod
    def of_next(cls, token: Ints, wanted: Ints) -> "Targets":
        """Let the token before each of `token` predict what is `wanted` there."""
        return cls(token - 1, token, wanted[token], np.ones(len(token), np.float32))


@dataclass(slots=True)
class TargetFinder:
    """Finds the targets of batches and keeps the record of those that it leaves out.

    Attributes:
        rules: what becomes of targets that do not see the token before them.
        screening: where those left out are counted.
        says: whether this rank is the one that says it.
    """

    rules: RowRules
    screening: Screening
    says: bool

    def find(self, sequences: Sequence[PackedSequence], hidden: Runs) -> Targets:
        """Give the targets of a batch: each token that counts is predicted by the one before it.

        Args:
            sequences: of the batch.
            hidden: runs of packed tokens that the next token of their sequence does not see.
        """
        lengths = [len(sequence.tokens) for sequence in sequences]
        wanted = np.concatenate([sequence.columns.targets for sequence in sequences])
        counts = wanted != IGNORE_LABEL
        counts[np.cumsum([0, *lengths[:-1]])] = False  # the first of a sequence
        if self.rules.hidden_targets == "keep":
            return Targets.of_next(np.flatnonzero(counts), wanted)
        sees = np.ones(len(wanted), np.bool_)
        for start, end in hidden:
            sees[start + 1 : end + 1] = False
        left_out = np.flatnonzero(counts & ~sees)
        if len(left_out):
            self._record(sequences, left_out, f"{len(left_out)} of the {counts.sum()} targets")
        return Targets.of_next(np.flatnonzero(counts & sees), wanted)

    def _record(self, sequences: Sequence[PackedSequence], left_out: Ints, share: str) -> None:
        """Count what is left out, row by row, and say it the first time."""
        ends = np.cumsum([len(sequence.tokens) for sequence in sequences])
        number = np.searchsorted(ends, left_out, side="right")
        for index, count in zip(*np.unique(number, return_counts=True), strict=True):
            self.screening.leave_out_targets(sequences[index].row, int(count))
        if self.says and self.rules.hidden_targets == "warn":
            self.says = False
            first = sequences[number[0]]
            self._say(share, first, int(left_out[0] - ends[number[0]]) + len(first.tokens))

    def _say(self, share: str, sequence: PackedSequence, token: int) -> None:
        masks = ", ".join(f"`{mask.name}`" for mask in sequence.masks.masks)
        positions = (
            "; position ids count on through the row, position_column= gives others"
            if self.rules.position_column is None
            else ""
        )
        # Up through `_record`, `find`, `_local` and `__iter__` to the line of the training loop.
        warnings.warn(
            f"{share} of a batch are left out: these tokens do not see the token before them, "
            f"which would have to predict them. The first is token {token} of row {sequence.row}, "
            f"which does not see token {token - 1} under {masks}. Say what is meant with RowRules: "
            "hidden_targets='leave_out' leaves them out without a word, 'keep' trains on them; a "
            f"labels column with {IGNORE_LABEL}, or a loss_column with 0, leaves single tokens out"
            f"{positions}. The loader says this once; loader.screening.hidden_targets counts on",
            UserWarning,
            stacklevel=6,
        )
