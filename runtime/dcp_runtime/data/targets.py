"""Targets of planned sequences: those that the loss counts and the token before them sees."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_runtime.data.choices import RowRules
from dcp_runtime.data.loss_masks import IGNORE_LABEL
from dcp_runtime.data.planner_pool import PlanReply
from dcp_runtime.data.screening import Screening, TargetCount
from dcp_runtime.data.sequences import PackedSequence


@dataclass(slots=True)
class TargetFinder:
    """Finds the targets of sequences and records those left out."""

    rules: RowRules
    screening: Screening
    count: TargetCount
    says: bool  # of targets left out, until it has
    says_seen: bool  # of targets that their predictor sees, until it has

    def find(self, sequences: Sequence[PackedSequence], planned: PlanReply) -> tuple[Ints, ...]:
        """Return the positions of the targets of each sequence, of at least one."""
        starts = np.cumsum([0, *(len(sequence.tokens) for sequence in sequences)])
        wanted = np.concatenate([sequence.columns.targets for sequence in sequences])
        counts = wanted != IGNORE_LABEL
        own = np.concatenate([sequence.columns.previous for sequence in sequences])
        counts[own < 0] = False  # the first of a sequence, or of a path
        begin = np.repeat(starts[:-1], np.diff(starts))
        # The masks were asked about the token right in front. Another token predicts the first of a
        # branch; nothing is known about that one.
        is_asked = own == np.arange(len(own)) - begin - 1
        if self.rules.hidden_targets != "keep":
            sees = np.ones(len(wanted), np.bool_)
            # The token behind a hidden token does not see the token that would predict it.
            for start, end in planned.hidden:
                sees[start + 1 : end + 1] = False
            sees |= ~is_asked
            left_out = np.flatnonzero(counts & ~sees)
            if len(left_out):
                self._record(sequences, left_out, f"{len(left_out)} of the {counts.sum()} targets")
            counts &= sees
        if self.says_seen and planned.seen:
            is_seen = np.zeros(len(wanted), np.bool_)
            for start, end in planned.seen:
                is_seen[start:end] = True
            copied = np.flatnonzero(counts & is_seen & is_asked)
            if len(copied):
                self.says_seen = False
                self._say_seen(sequences, copied, f"{len(copied)} of the {counts.sum()} targets")
        found = tuple(np.flatnonzero(counted) for counted in np.split(counts, starts[1:-1]))
        self.count.add(
            [len(sequence.tokens) for sequence in sequences],
            [len(targets) for targets in found],
            {member for batch in planned.batches for member in batch.members},
        )
        return found

    def _record(self, sequences: Sequence[PackedSequence], left_out: Ints, share: str) -> None:
        """Count the targets left out of each row; warn the first time."""
        ends = np.cumsum([len(sequence.tokens) for sequence in sequences])
        number = np.searchsorted(ends, left_out, side="right")
        for index, count in zip(*np.unique(number, return_counts=True), strict=True):
            self.screening.leave_out_targets(sequences[index].row, int(count))
        if not self.says or self.rules.hidden_targets != "warn":
            return
        self.says = False
        row, token, masks = _place(sequences, int(left_out[0]))
        positions = (
            "; position ids count on through the row, position_column= gives others"
            if self.rules.position_column is None
            else ""
        )
        # Up through `find`, `take` and `_epoch` to the line of the training loop.
        warnings.warn(
            f"{share} of a batch are left out: these tokens do not see the token before them, "
            f"which would have to predict them. The first is token {token} of row {row}, "
            f"which does not see token {token - 1} under {masks}. Say what is meant with RowRules: "
            "hidden_targets='leave_out' leaves them out silently, 'keep' trains on them; a "
            f"labels column with {IGNORE_LABEL}, or a loss_column with 0, leaves single tokens out"
            f"{positions}. The loader says this once; loader.screening.hidden_targets counts on",
            UserWarning,
            stacklevel=5,
        )

    def _say_seen(self, sequences: Sequence[PackedSequence], seen: Ints, share: str) -> None:
        row, token, masks = _place(sequences, int(seen[0]))
        # As in `_record`.
        warnings.warn(
            f"{share} of a batch are seen by the token that predicts them: the model can copy "
            f"them, and its loss falls though it learns nothing. The first is token {token} of row "
            f"{row}, which token {token - 1} sees under {masks}. Leave such targets out with "
            f"a loss_column with 0 or a labels column with {IGNORE_LABEL}, or take a mask under "
            "which these tokens see no later ones; where it is meant, as in masked-language-model "
            "training on labels of your own, nothing is to be done. The loader says this once",
            UserWarning,
            stacklevel=5,
        )


def _place(sequences: Sequence[PackedSequence], position: int) -> tuple[int, int, str]:
    """Return the row of a packed position, the token in that row, and the row's masks in words."""
    ends = np.cumsum([len(sequence.tokens) for sequence in sequences])
    own = sequences[number := int(np.searchsorted(ends, position, side="right"))]
    token = position - int(ends[number]) + len(own.tokens)
    return own.row, token, ", ".join(f"`{mask.name}`" for mask in own.masks)
