"""Choose the form of a mask on a sample: try the symbolic ones, fall back to bounds and tiles.

A mask is tried from the side it is simple from, the queries or the keys, and then from the other.
"""

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from dcp_dsl.budget import Budget, OverBudget
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.layout import Column
from dcp_dsl.core.lowering import Lowering, NoForm
from dcp_dsl.core.predicate import Predicate
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.reads import column_readers, laid_statements
from dcp_dsl.elaboration.text import show
from dcp_dsl.forms.conversion import slabs_of, to_form
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.tiles import Tiles
from dcp_dsl.symbolic.intervals import Grid
from dcp_dsl.symbolic.piecewise import TooManyPieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import NotSeparable

MAX_STEPS = 2**23  # slabs and nodes; one or two seconds
MAX_PART_STEPS = 2**22  # of symbolic work on one part of a predicate
MAX_UNDECIDED = 2**31  # pairs to look at one by one; some seconds
MAX_BLOCKS = 2**9  # per side, when deciding whether a mask is too large


def bind_core(core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int) -> Form:
    """Return the pairs that a mask allows on a sample.

    Args:
        core: the mask as a core program.
        columns: of the sample.
        num_tokens: tokens of the sample.

    Raises:
        SpecError: for constants out of range, and for masks too large for every form.
        DatasetError: if the sample does not fit a layout.
    """
    if num_tokens == 0:
        return slabs_of(Region.empty(0))
    has_tokens = any(isinstance(c, list) and len(c) == num_tokens for c in columns.values())
    keys_first = has_tokens and reads_keys_only(core)
    place: nodes.Place | None = None
    for is_transposed in (keys_first, not keys_first):
        frame = Frame.of(num_tokens, columns, Budget(MAX_STEPS))
        try:
            found = Lowering(frame, is_transposed=is_transposed).mask(core)
        except NoForm as error:
            place = place or error.place
            if isinstance(error.why, NotSeparable):
                break  # the same from the keys
            continue
        return to_form(found, is_transposed=is_transposed and isinstance(found, Region))
    assert place is not None, "something was too wide"
    return _bind_tiles(core, columns, num_tokens, place)


def reads_keys_only(core: nodes.Mask) -> bool:
    """Return whether a mask reads token columns at keys only, as eviction and trees do."""
    sides = {
        node.at.side if isinstance(node.at, nodes.Pos) else "any"
        for node in nodes.walk(core)
        if isinstance(node, nodes.Lookup) and isinstance(node.table, nodes.TokenColumn)
    }
    return sides == {"k"}


def _bind_tiles(
    core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int, place: nodes.Place
) -> Form:
    """Return a mask as a predicate, if not too many pairs are left to look at one by one."""
    frame = Frame.of(num_tokens, columns, Budget(MAX_PART_STEPS))
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
