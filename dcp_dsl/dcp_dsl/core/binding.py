"""Choose the form of a mask on a sample: try the symbolic ones, fall back to bounds and tiles.

A mask is tried with rows of queries and with rows of keys, the side that looks simpler first. If
both have too many pieces, scattered conditions are taken out (`factors`), and at last blocks are
decided by bounds (`predicate`).

Slabs bound lately are kept: most sequences of a batch have lengths that an earlier step had, too.
Kept slabs are small and immutable, so that all callers may share them.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from threading import Lock
from typing import TypeAlias

import numpy as np

from dcp_dsl.core.columns import Column
from dcp_dsl.core.factors import factorise
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.lowering import Lowering, NoForm
from dcp_dsl.core.predicate import Predicate
from dcp_dsl.core.sample import Rectangle
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import (
    KeySequence,
    column_readers,
    laid_statements,
    listing_columns,
    show_mask,
)
from dcp_dsl.errors import Budget, OverBudget
from dcp_dsl.forms.conversion import slabs_of, to_form
from dcp_dsl.forms.form import CrossForm, Form
from dcp_dsl.forms.parts import DecidedPart, Parts, step_of
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.symbolic.intervals import Grid
from dcp_dsl.symbolic.piecewise import TooManyPieces, limit_pieces
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import NotSeparable
from dcp_dsl.syntax.trees import column_name

MAX_STEPS = 2**22  # slabs and nodes; a fraction of a second
STEPS_PER_INSTANCE = 2**6  # more for each instance that the sample lists: it has them anyway
# Masks may have a piece for each token, and for each number in a list of a token: so limits grow
# with these, smoothly, up to a size of a few seconds.
TOKENS_PER_INSTANCE, MOST_TOKENS = 2**3, 2**24
MAX_PART_STEPS = 2**21  # of symbolic work on one part of a predicate
MAX_PAIR_STEPS = 2**29  # operations on pairs that are looked at one by one; two seconds
# nodes that cost nothing for each pair
FREE = (nodes.Const, nodes.Pos, nodes.Length, nodes.Count, nodes.RowColumn)

# The C library gives freed arrays back to the system and gets new pages, each cleared, for the next
# ones: a quarter of the time of a mask with 100,000 slabs. It stops doing so, for up to 64 MB, once
# a block of almost 32 MB has been freed. This one is never written to, so it takes no memory.
np.empty(2**22 - 2**10)


def bind_cross(
    core: nodes.Mask, keys: KeySequence, columns: Mapping[str, Column], num_queries: int
) -> CrossForm:
    """Return the pairs that a mask allows between so many queries and the keys of a sample."""
    found = Rectangle.of(core, keys, columns, num_queries)
    size = 0 if found.is_empty else found.size
    square = bind_core(found.cut(core), columns, size, found)
    return CrossForm(square, found.num_q, found.num_kv, found.first_row)


def bind_core(
    core: nodes.Mask,
    columns: Mapping[str, Column],
    num_tokens: int,
    rectangle: Rectangle | None = None,
) -> Form:
    """Return the pairs that a mask allows on a sample.

    Raises:
        SpecError: for constants out of range, and for masks too large for every form.
        DatasetError: if the sample does not fit a layout.
    """
    if num_tokens == 0:
        return slabs_of(Region.empty(0))
    has_tokens = any(isinstance(c, list) and len(c) == num_tokens for c in columns.values())
    # with rows of keys, a column read at keys is one number per row, which bounds a run of queries
    keys_first = has_tokens and reads_keys_only(core)
    num_listed = sum(_count(columns[name]) for name in listing_columns(core))
    num_places = num_tokens * sum(
        n.size or 1 for n in nodes.walk(core)
        if isinstance(n, nodes.TokenColumn) and n.segment is None
    )  # fmt: skip
    num_listed += min(max(num_tokens, num_places), MOST_TOKENS) // TOKENS_PER_INSTANCE
    steps = MAX_STEPS + STEPS_PER_INSTANCE * num_listed
    whole = Frame.of(num_tokens, columns, Budget(steps), rectangle, num_listed)
    first: NoForm | None = None
    for is_transposed in (keys_first, not keys_first):
        frame = replace(whole, budget=Budget(steps))  # results found so far are shared
        try:
            found = Lowering(frame, is_transposed=is_transposed).mask(core)
        except NoForm as error:
            first = first or error
            if isinstance(error.why, NotSeparable):
                break  # a number that joins q and k, such as `q * k`, joins them from the keys, too
            continue
        return to_form(found, is_transposed=is_transposed and isinstance(found, Region))
    assert first is not None, "something was too wide"
    try:
        frame = replace(whole, budget=Budget(MAX_PART_STEPS))
        return factorise(core, frame) or _bind_tiles(core, frame)
    except (NoForm, NotSeparable, TooManyPieces, OverBudget) as error:
        why = str(error) or str(first.why) or f"more than {steps:_} steps"
    first.place.fail(
        "E191", f"this falls into too many pieces on this sample: {why}",
        "use a shorter sample, or larger tiles",
    )  # fmt: skip


def reads_keys_only(core: nodes.Mask) -> bool:
    """Return whether a mask reads columns at keys only, as eviction and trees do."""
    sides = {
        node.at.side if isinstance(node.at, nodes.Pos) else "any"
        for node in nodes.walk(core)
        if isinstance(node, nodes.Lookup | nodes.Listed)
        and isinstance(node.table, nodes.TokenColumn)
    }
    return sides == {"k"}


def _bind_tiles(core: nodes.Mask, frame: Frame) -> Form:
    """Return a mask as a predicate.

    Bounds decide blocks; the pairs of the others are looked at one by one whenever it is used, so
    their number is limited here.

    Raises:
        TooManyPieces: if too many pairs are left to look at one by one.
        NoForm, NotSeparable, OverBudget: if a part of it is too wide.
    """
    decide = Predicate.of(core, frame, is_symbolic=True)
    num_tokens = frame.num_tokens
    block = step_of(num_tokens)
    bounds = np.unique(np.append(np.arange(0, num_tokens, block), num_tokens))
    always, ever = decide(Grid(bounds, bounds))
    undecided = int((ever & ~always).sum()) * block**2
    steps = sum(not isinstance(node, FREE) for node in nodes.walk(core))
    limit_pieces(undecided, MAX_PAIR_STEPS // steps, "pairs to look at one by one")
    return Parts(num_tokens, (DecidedPart(decide, _name(core, frame.columns)),))


def _name(core: nodes.Mask, columns: Mapping[str, Column]) -> str:
    """Return a text that is the same only for equal programs on equal columns, for digests."""
    statements = [repr(statement) for statement in laid_statements(core)]
    used = sorted({column for column, _ in column_readers(core)})
    tokens = sorted(
        {f"{column_name(n.name)} {column_name(n.column)} {n.size}" for n in nodes.walk(core)
         if isinstance(n, nodes.TokenColumn)}
    )  # fmt: skip
    return "\n".join([show_mask(core), *statements, *tokens, *(f"{c} {columns[c]}" for c in used)])


MAX_KEPT = 512  # forms, some 100 MB if all are as large as they may be
MAX_SLABS = 2**12  # of a form that is kept
MAX_LENGTHS = 2**12  # in the lists of a sample that is looked for

Shape: TypeAlias = tuple[nodes.Mask, int, tuple[tuple[str, object], ...]]

_kept: OrderedDict[Shape, Slabs] = OrderedDict()
_lock = Lock()


def bind_again(core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int) -> Form:
    """Bind a mask as `bind_core` does; return kept slabs if it was bound to equal columns lately.

    A second program of the same text is another mask.
    """
    # columns of a number per token are seldom seen again, and large to keep
    if sum(map(_size, columns.values())) > MAX_LENGTHS:
        return bind_core(core, columns, num_tokens)
    shape = core, num_tokens, tuple((name, _frozen(columns[name])) for name in sorted(columns))
    with _lock:
        found = _kept.get(shape)
        if found is not None:
            _kept.move_to_end(shape)
            return found
    form = bind_core(core, columns, num_tokens)
    if isinstance(form, Slabs) and len(form) <= MAX_SLABS:
        with _lock:
            _kept[shape] = form
            while len(_kept) > MAX_KEPT:
                _kept.popitem(last=False)
    return form


def _size(value: Column) -> int:
    """Count the integers of a column; stop where they are too many."""
    if not isinstance(value, list):
        return 1
    if len(value) > MAX_LENGTHS or not any(isinstance(inner, list) for inner in value):
        return len(value)
    return sum(map(_size, value))


def _count(value: Column) -> int:
    """Count the integers of a column that lists instances, whose items are all lists or none."""
    if not isinstance(value, list):
        return 1
    return sum(map(_count, value)) if value and isinstance(value[0], list) else len(value)


def _frozen(value: Column) -> object:
    """Return integers and nested lists of them as a value with a hash."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
