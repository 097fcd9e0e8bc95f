"""Columns in which other tools say which tokens the loss counts, and which tokens are padding.

They are known by what they are called. Names are many, so every column that calls itself a mask,
and is not of images or the like, counts as one. A column of another name that looks like a loss
mask is told once: what it holds does not decide.
"""

import logging
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Ints
from dcp_dsl.data.documents import is_of_other_things
from dcp_runtime.data.choices import RowRules
from dcp_runtime.errors import RunError

Role: TypeAlias = Literal["padding", "left_out", "weights", "counted"]
Values: TypeAlias = NDArray[Any]  # Any: numbers of any kind

_IN = "(?:loss|completion|assistant|response|answer|action|label|target|train(?:ed|able)?)s?"
_OUT = "(?:pad(?:ding)?|prompt|context|instruction|question|system|user)s?"
_NAMES: dict[Role, str] = {
    "padding": r"(?:.+_)?(?:attention|valid)_masks?|(?:inputs?|tokens?)_masks?",
    "left_out": rf"(?:.+_)?{_OUT}_masks?|is_{_OUT}(?:_tokens?)?",
    "weights": r"(?:.+_)?(?:loss|token)_?(?:weights?|scales?)|weights?",
    "counted": rf"(?:.+_)?masks?|(?:train|loss)_on(?:_.+)?|(?:is_)?trainable|is_{_IN}(?:_tokens?)?",
}
"""Names by role, the first that fits; 0 marks padding and what does not count, but 1 `left_out`."""

IGNORE_LABEL = -100
"""Label of a token that predicts nothing, as ``torch.nn.CrossEntropyLoss`` ignores it."""

FEW_ROWS = 8
"""Rows in which a column of another name must look like a loss mask before the loader says so."""

FEW_TOKENS = 3  # fewest tokens of a run of ones, in the mean, for that

logger = logging.getLogger(__name__)


@lru_cache(1024)
def role_by_name(name: str) -> Role | None:
    """Return what a column of this name says; ``None`` for names of other columns.

    >>> [role_by_name(name) for name in ("response_mask", "prompt_mask", "loss_scale")]
    ['counted', 'left_out', 'weights']
    >>> role_by_name("special_tokens_mask") is None
    True
    """
    plain = name.lower().strip("_")
    if is_of_other_things(plain):
        return None
    return next((role for role, names in _NAMES.items() if re.fullmatch(names, plain)), None)


def check_mask(
    rules: RowRules, name: str, role: Role, values: Values, counted: Bools, *, has_labels: bool
) -> None:
    """Refuse a column that leaves out tokens which the loss counts, bool ``[n]`` in `counted`."""
    if role == "counted" and not np.isin(values, (0, 1)).all():
        role = "weights" if ((values >= 0) & (values <= 1)).all() else "counted"
    if (out := _left_out(role, values)) is None:
        return
    if out.shape != counted.shape:
        _check_length(name, role, values, len(counted))
        return
    length, is_read = len(values), name == rules.loss_column
    if role == "padding" and out.any() and not out[out.argmax() :].all():
        raise RunError(
            f"column `{name}` leaves out {out.sum()} of {length} tokens, the first of them token "
            f"{out.argmax()}, and tokens behind see them as keys; rows need no padding: give rows "
            f"without these tokens; {unchecked(name)}"
        )
    conflicts = int((out & counted)[1:].sum())  # the first token is never a target
    if is_read or not conflicts:
        return
    verb = "weighs" if role == "weights" else "leaves out"
    raise RunError(
        f"column `{name}` {verb} {out.sum()} of {length} tokens, and nothing reads it: "
        f"{conflicts} of them count as targets{' by their labels' * has_labels}; "
        f"{_way(rules, role, name, has_labels=has_labels)}; {unchecked(name)}"
    )


def _check_length(name: str, role: Role, values: Values, length: int) -> None:
    """Refuse a mask of the loss that has a value for some tokens only, such as the response."""
    if role == "counted" and values.ndim == 1 and re.search(rf"(?:^|_){_IN}_", name.lower()):
        raise RunError(
            f"column `{name}` holds {len(values)} values for {length} tokens, and nothing reads "
            f"it: RowRules(loss_column={name!r}) reads one value per token, 0 for those that the "
            f"column leaves away; {unchecked(name)}"
        )


def check_labels(name: str, values: Ints, tokens: Ints, counted: Bools) -> bool:
    """Refuse a column that can only be labels, if it leaves out targets; return if it may be."""
    # Labels are -100 for some tokens, and for the others their ids, or those of the next tokens.
    if values.shape != tokens.shape:
        return False
    is_out = values == IGNORE_LABEL
    is_own = (values == tokens) | is_out
    is_next = (values[:-1] == tokens[1:]) | is_out[:-1]
    may_be = bool(is_own.all() or is_next.all())
    conflicts = int((is_out & counted)[1:].sum())
    if may_be and conflicts and not is_out.all():
        raise RunError(
            f"column `{name}` holds labels that leave out {is_out.sum()} of {len(values)} tokens, "
            f"and nothing reads it: {conflicts} of them count as targets; "
            f"RowRules(labels_column={name!r}) reads it; {unchecked(name)}"
        )
    return may_be


def _left_out(role: Role, values: Values) -> Bools | None:
    """Return which tokens are not to count once, bool ``[n]``; ``None`` if it is no such column."""
    if role == "padding":
        return np.asarray(values == 0)  # other numbers are those of documents
    if role == "weights":
        return np.asarray(values != 1)
    return values == (role == "left_out") if np.isin(values, (0, 1)).all() else None


def _way(rules: RowRules, role: Role, name: str, *, has_labels: bool) -> str:
    """Return how a column of a role is read."""
    if role == "padding":
        return "rows need no padding: give rows without these tokens"
    if role == "weights":
        return (
            f"RowRules(extra_columns=({name!r},)) carries it along, and dataclasses.replace("
            f"local_data, target_weights=local_data.target_extra[{name!r}]) weighs with it"
        )
    if rules.loss_column is not None:
        return f"give one loss_column that is 0 where `{name}` or `{rules.loss_column}` says so"
    # Labels that count what the column leaves out contradict it: one of the two is to be read.
    labels = ", labels_column=None" * has_labels
    if role == "left_out":
        return (
            f"RowRules(loss_column='loss_mask'{labels}) reads a column loss_mask of 1 - {name}, "
            "which leaves these targets out"
        )
    return f"RowRules(loss_column={name!r}{labels}) leaves these targets out"


def unchecked(name: str) -> str:
    """Return how a user says that a column changes nothing."""
    return f"RowRules(unchecked_columns=({name!r},)) trains as if it were not there"


@dataclass(slots=True)
class LikelyMasks:
    """Warn once of a column of unknown name that looks like a loss mask, over the rows so far."""

    settled: set[str] = field(default_factory=set)  # columns that are none, or are told
    _rows: dict[str, set[int]] = field(default_factory=dict)

    def see(self, number: int, name: str, values: Values | None) -> bool:
        """Judge the column in a row; return whether it is to be told now."""
        # A loss mask begins with 0, as a prompt does, and holds runs of tokens. A row in which all
        # tokens count, or none, says nothing.
        if name in self.settled:
            return False
        if values is None or not np.isin(values, (0, 1)).all():
            self.settled.add(name)
            return False
        changes = int(np.count_nonzero(values[1:] != values[:-1]))
        if not changes:
            return False
        # As many runs of ones as there are odd changes.
        has_runs = values.sum() >= FEW_TOKENS * (changes + 1) // 2 and 4 * changes <= len(values)
        rows = self._rows.setdefault(name, set())
        rows.add(number)
        is_found = values[0] == 0 and has_runs and len(rows) >= FEW_ROWS
        if is_found or values[0] or not has_runs:
            self.settled.add(name)
        return bool(is_found)


def tell_mask(name: str, values: Values) -> None:
    """Warn that a column may be a loss mask."""
    logger.warning(
        "column `%s` holds 0 for %d of %d tokens and 1 for the others, and nothing reads it: all "
        "tokens count as targets. If 1 says that the loss counts a token, "
        "RowRules(loss_column=%r) reads it; RowRules(unchecked_columns=(%r,)) ends this warning",
        name,
        int((values == 0).sum()),
        len(values),
        name,
        name,
    )
