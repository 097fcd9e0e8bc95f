"""Bind a mask without a symbolic form as a predicate, if not too much is left to look at."""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import NoForm
from dcp_dsl.core.predicate import Predicate
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.reads import column_readers, laid_statements
from dcp_dsl.elaboration.text import show
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.tiles import Tiles
from dcp_dsl.symbolic.intervals import Grid
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.terms import NotSeparable

MAX_STEPS = 2**22  # of symbolic work on one part
MAX_UNDECIDED = 2**31  # pairs to look at one by one; some seconds
MAX_BLOCKS = 2**9  # per side, when deciding whether a mask is too large


def bind_tiles(
    core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int, place: nodes.Place
) -> Form:
    """Return the mask as a predicate.

    Args:
        core: as for `bind_core`, like the next two.
        columns: of the sample.
        num_tokens: tokens of the sample.
        place: what had no symbolic form, for messages.

    Raises:
        SpecError: if too many pairs would have to be looked at one by one.
    """
    frame = Frame.of(num_tokens, columns, Budget(MAX_STEPS))
    try:
        decide = Predicate.of(core, frame, is_symbolic=True)
    except (NoForm, NotSeparable, TooManyPieces, OverBudget):
        _refuse(place)
    block = max(64, -(-num_tokens // MAX_BLOCKS))
    bounds = np.unique(np.append(np.arange(0, num_tokens, block), num_tokens))
    always, ever = decide(Grid(bounds, bounds))
    if int((ever & ~always).sum()) * block**2 > MAX_UNDECIDED:
        _refuse(place)
    return Tiles(num_tokens, decide, _name(core, columns))


def _name(core: nodes.Mask, columns: Mapping[str, Column]) -> str:
    """Return a text that is the same only for equal programs on equal columns."""
    statements = [repr(statement) for statement in laid_statements(core)]
    used = sorted({column for column, _ in column_readers(core)})
    tokens = sorted(
        {f"{n.name} {n.column}" for n in nodes.walk(core) if isinstance(n, nodes.TokenColumn)}
    )
    return "\n".join([show(core), *statements, *tokens, *(f"{c} {columns[c]}" for c in used)])


def _refuse(place: nodes.Place) -> NoReturn:
    place.fail(
        "E191", "this falls into too many pieces on this sample",
        "use a shorter sample, or larger tiles",
    )  # fmt: skip
