"""How this room compiles: few specialisations, no counting of references, kept on disk.

Compiling happens once per installation and machine, but whoever installs waits for it. Functions
that only compiled code calls get one signature: without, numba makes a version for every mixture
of int32, int64 and literal arguments that their callers write. None allocates, so that arrays need
not be counted: that halves the code. What runs once per plan is numpy instead.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core import event

_Function = TypeVar("_Function", bound=Callable[..., Any])  # Any: of any signature

INT, FLOAT, NOTHING = types.int64, types.float64, types.void
BYTES = types.uint8[::1]
INDICES, INDEX_TABLE = types.int32[::1], types.int32[:, ::1]
INTS, INT_TABLE = types.int64[::1], types.int64[:, ::1]
FLOATS, FLOAT_TABLE = types.float64[::1], types.float64[:, ::1]
WORDS = types.uint64[::1]


def compiled(function: _Function) -> _Function:
    """Compile a function that Python calls, for the types that it is called with.

    It must not allocate, and its callers must not mix types: each mixture is compiled.
    """
    return _compile(function)


def inner(signature: Any) -> Callable[[_Function], _Function]:  # Any: numba's signatures
    """Compile a function for one signature and for compiled functions only; it must not allocate.

    Taking a tuple of arrays from Python, which callers of `compiled` pay for, is much code.
    """

    def decorate(function: _Function) -> _Function:
        return _compile(function, signature, no_cpython_wrapper=True, no_cfunc_wrapper=True)

    return decorate


def _compile(function: _Function, *signature: Any, **options: bool) -> _Function:
    # Any: numba's types know none of these options, nor signatures.
    make = functools.partial(cast(Any, njit), error_model="numpy", _nrt=False, **options)
    try:
        made = make(*signature, cache=True)(function)
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        # Neither the folder of the package nor the user's cache can be written: every process pays.
        made = make(*signature)(function)
    return cast(_Function, made)


@contextmanager
def announced(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` once if anything is compiled inside, before it is; what lies on disk is not."""
    with event.install_listener("numba:compile", _First(tell)):
        yield


class _First(event.Listener):
    """Hears of the first function that is compiled."""

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._has_told = False

    def on_start(self, event: event.Event) -> None:
        if not self._has_told:
            self._has_told = True
            self._tell()

    def on_end(self, event: event.Event) -> None:
        pass
