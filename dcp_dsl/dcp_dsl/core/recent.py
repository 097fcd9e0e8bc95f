"""Keep the slabs of masks bound lately: batches bring the same shapes again and again.

A training step binds a mask to a handful of sequences, and most of them have lengths that a step
before had too. What is kept is small and immutable, so that all callers may share it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import TypeAlias

from dcp_dsl.core.binding import bind_core
from dcp_dsl.core.layout_columns import Column
from dcp_dsl.elaboration import nodes
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs

MAX_KEPT = 512  # forms, some 100 MB if all are as large as they may be
MAX_SLABS = 2**12  # of a form that is kept
MAX_LENGTHS = 2**12  # in the lists of a sample that is looked for

Shape: TypeAlias = tuple[nodes.Mask, int, tuple[tuple[str, object], ...]]

_kept: OrderedDict[Shape, Slabs] = OrderedDict()
_lock = Lock()


def bind_again(core: nodes.Mask, columns: Mapping[str, Column], num_tokens: int) -> Form:
    """Return what `bind_core` returns; at once if the program was bound to equal columns lately.

    Args:
        core: the mask as a core program; another one with the same text is a different one.
        columns: those that the mask reads.
        num_tokens: tokens of the sample.

    Raises:
        SpecError, DatasetError: as `bind_core`.
    """
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
    """Count the integers of a column, until they are too many anyway."""
    if not isinstance(value, list):
        return 1
    if len(value) > MAX_LENGTHS or not any(isinstance(inner, list) for inner in value):
        return len(value)
    return sum(map(_size, value))


def _frozen(value: Column) -> object:
    """Return integers and nested lists of them as what can be looked up."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
