"""How this room compiles: few specialisations, no counting of references, kept on disk.

Compiling happens once per installation and machine, but whoever installs waits for it. Functions
that only compiled code calls get one signature: without, numba makes a version for every mixture
of int32, int64 and literal arguments that their callers write. None allocates, so that arrays need
not be counted: that halves the code. What runs once per plan is numpy instead.
"""

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core import event
from numba.core.caching import FunctionCache
from numba.extending import is_jitted

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


# Any: numba's types know none of these options, nor signatures, nor caches.
def _compile(function: _Function, *signature: Any, **options: bool) -> _Function:
    made: Any = cast(Any, njit)(error_model="numpy", _nrt=False, **options)(function)
    if made is function:  # numba is switched off
        return function
    try:
        made._cache = _Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        # Neither the folder of the package nor the user's cache can be written: every process pays.
    for types_ in signature:
        made.compile(types_)
        made.disable_compile()
    return cast(_Function, made)


class _Cache(FunctionCache):
    """The compiled function on disk, for as long as the code that it calls is the same.

    Numba itself asks only whether the function's own file has changed.
    """

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return (*key, *map(_content, sorted(_files_called(self._py_func, set()))))


def _files_called(function: Callable[..., Any], known: set[str]) -> set[str]:
    """Add the files of all compiled functions that a function calls, and of those they call."""
    for name in function.__code__.co_names:
        called: Any = function.__globals__.get(name)  # Any: numba's types miss `py_func`
        if is_jitted(called) and called.py_func is not function:
            known.add(called.py_func.__code__.co_filename)
            _files_called(called.py_func, known)
    return known


@functools.cache
def _content(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


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
