"""Compile the loops of the planner with numba, and keep the compiled code on disk.

A wheel contains the compiled code (`SHIPPED`) for the Python, numba and architecture that it was
built with. Elsewhere the first plan compiles the loops. The user then waits: a line on standard
error says so, and `COMPILE_CLOCK` counts that time apart from planning. The code is kept in the
user's cache under the content of its sources, so that another installation of them finds it.

Functions that only compiled code calls have one signature, taken from their annotations. Without it
numba compiles a version for every mixture of int32, int64 and literal arguments in their callers.
No compiled function allocates arrays, so references need not be counted: that halves the code. Work
that is done once per plan is written in numpy instead.

If the user's cache cannot be written, a private folder keeps the code. Whoever can write to that
folder can make this process run their code. So it belongs to this user alone, and a folder that
others could change is not used.
"""

import functools
import hashlib
import os
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_platform
from time import perf_counter
from typing import Annotated, Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import numba
import numpy as np
from numba import from_dtype, njit, types
from numba.core import caching, event
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.extending import is_jitted
from numpy.typing import NDArray

from dcp_dsl.arrays import Floats, Indices, Ints, element_type

IntTable: TypeAlias = Annotated[Ints, 2]
IndexTable: TypeAlias = Annotated[Indices, 2]
FloatTable: TypeAlias = Annotated[Floats, 2]
"""Arrays of two dimensions, for compiled functions, whose types come from their annotations."""

SHIPPED = Path(__file__).with_name("compiled") / f"{get_platform()}-numba{numba.__version__}"
"""Folder of the compiled code in a wheel, for any processor of an architecture (`make wheel`)."""

_CONSTANTS = (int, float, str, tuple, np.generic)
_Function = TypeVar("_Function", bound=Callable[..., Any])  # Any: of any signature


def compiled(function: _Function) -> _Function:
    """Compile a function that Python calls, for the types that it is called with.

    It must not allocate, and its callers must not mix types: each mixture is compiled. The compiled
    functions that it calls are linked into it and kept with it.
    """
    made = _njit(function)
    if made is function:  # numba is switched off
        return function
    try:
        made._cache = _Cache(function)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        if "cannot cache" not in str(error):
            raise
        COMPILE_CLOCK.is_kept = False  # no folder can be written: every process pays
    return cast(_Function, made)


def inner(function: _Function, **options: bool) -> _Function:
    """Compile a function that only compiled functions call, for the types of its annotations.

    Compilation waits for the first caller that is compiled: a process that finds all callers in the
    cache compiles nothing. The function must not allocate. Python cannot call it, which saves the
    code that takes a tuple of arrays apart.
    """
    made = _njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    if made is function:  # numba is switched off
        return function
    template = made.get_call_template

    # Numba asks for the template when it types a call, which happens while a caller is compiled.
    def compile_first(args: Any, kws: Any) -> Any:  # Any: numba's types
        if not made.signatures:
            hints = get_type_hints(function, include_extras=True)
            result = _numba_type(hints.pop("return"))
            made.compile(result(*map(_numba_type, hints.values())))
            made.disable_compile()  # later calls convert their arguments to this signature
        return template(args, kws)

    made.get_call_template = compile_first
    return cast(_Function, made)


def inlined(function: _Function) -> _Function:
    """Compile as `inner` does, into every caller: for small functions of a large state.

    A call copies the tuple, some 190 words, which takes longer than most such functions run.
    """
    return inner(function, forceinline=True)


def _numba_type(hint: Any) -> Any:  # Any: annotations, and numba's types
    """Return numba's type of an annotation: a number, an array in C order, or a tuple of those."""
    if get_origin(hint) in (np.ndarray, NDArray):
        hint = Annotated[hint, 1]
    if get_origin(hint) is Annotated:
        array, dimensions = get_args(hint)
        return types.Array(from_dtype(np.dtype(element_type(array))), dimensions, "C")
    if get_origin(hint) is tuple:
        return types.Tuple(  # type: ignore[no-untyped-call]
            [_numba_type(part) for part in get_args(hint)]
        )
    if issubclass(hint, tuple):
        fields = get_type_hints(hint, include_extras=True)
        return types.NamedTuple(  # type: ignore[no-untyped-call]
            [_numba_type(field) for field in fields.values()], hint
        )
    return {int: types.int64, float: types.float64, type(None): types.void}[hint]


def _njit(function: Callable[..., Any], **options: bool) -> Any:  # Any: numba has no types
    COMPILE_CLOCK.watch(function)
    # Numpy's errors: no branch at every division. `_nrt`: no counting of references.
    return cast(Any, njit)(error_model="numpy", _nrt=False, **options)(function)


_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder() -> Path:
    """Return the folder of this user below the one for temporary files; make it if missing."""
    folder = Path(tempfile.gettempdir(), f"dcp-compiled-{os.geteuid()}")
    # Somebody else may have made it, so it is checked in either case.
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder)
    return folder


def check_private(folder: Path) -> None:
    """Check that only this user and root can write to a folder or replace it."""
    # Not `stat`: a link would lead to a folder that somebody else has chosen.
    own, parent = folder.lstat(), folder.parent.stat()
    if not stat.S_ISDIR(own.st_mode):
        raise PermissionError(f"{folder}: expected a folder")
    if own.st_uid != os.geteuid() or own.st_mode & _OTHERS:
        raise PermissionError(f"{folder}: expected a folder of this user that others cannot enter")
    is_shared = parent.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if is_shared and not parent.st_mode & stat.S_ISVTX:
        raise PermissionError(f"{folder.parent}: others can replace what lies here (no sticky bit)")


def check_unshared(folder: Path) -> None:
    """Check that nobody can write code into a folder but its owner and this process's group."""
    # In a sticky parent others can make folders of their own, but not replace this one.
    for place, may_stick in ((folder, False), (folder.parent, True)):
        found = place.stat()
        is_open = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid()
        )
        if is_open and not (may_stick and found.st_mode & stat.S_ISVTX):
            raise PermissionError(f"{place}: others can write compiled code here")


def given_folder() -> Path | None:
    """Return the folder that the user names for compiled code, if any."""
    given: str = numba.core.config.CACHE_DIR  # type: ignore[attr-defined]  # set as it is loaded
    return Path(given) if given else None


def user_folder() -> Path:
    """Return the folder below the user's cache: no installation of the package reaches it."""
    above = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(above, "dcp-dsl", "compiled")


# Any: numba's caches have no types.
class _Locator(caching._SourceFileBackedLocatorMixin, caching._CacheLocator):
    """Keeps the compiled functions of a file in a folder that its content and numba name.

    Where the file lies and when it was written play no part: checkouts and installations share the
    code of equal files, and keep that of unequal ones side by side.
    """

    @staticmethod
    def find_folder() -> Path | None:
        """Return the folder of all compiled code, ``None`` where this locator has none."""
        raise NotImplementedError

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        self._py_file = py_file
        self._lineno = py_func.__code__.co_firstlineno
        self._path = ""

    def ensure_cache_path(self) -> None:
        """Make the folder for the file."""
        if (folder := type(self).find_folder()) is None:
            raise FileNotFoundError("NUMBA_CACHE_DIR is not set")
        made_of = _content(self._py_file) + _content(__file__)  # this file sets numba's options
        name = hashlib.sha256(made_of.encode()).hexdigest()[:16]
        path = folder / f"numba{numba.__version__}" / f"{Path(self._py_file).stem}-{name}"
        self._path = str(path)
        super().ensure_cache_path()  # type: ignore[no-untyped-call]
        check_unshared(path)
        check_unshared(path.parent)

    def get_cache_path(self) -> str:
        """Return the folder for the file."""
        assert self._path, "numba asks for the folder before it uses it"
        return self._path


class _GivenLocator(_Locator):
    find_folder = staticmethod(given_folder)


class _UserLocator(_Locator):
    find_folder = staticmethod(user_folder)


class _PrivateLocator(_Locator):
    find_folder = staticmethod(private_folder)


SOME_SECONDS = "some 15 s on a free core"
"""Time to compile everything, for messages."""


@dataclass(slots=True)
class Stopwatch:
    """Measured time of a piece of work."""

    seconds: float = 0.0  # wall-clock time without compiling
    compile_s: float = 0.0  # wall-clock time of compiling


class CompileClock(event.Listener):
    """Listens to numba's compile events; adds up the seconds of watched functions, per thread.

    Attributes:
        is_kept: whether compiled code stays on disk for other processes.
    """

    def __init__(self) -> None:
        self.is_kept = True
        self._watched: set[Callable[..., Any]] = set()
        self._has_told = False
        self._own = threading.local()
        event.register("numba:compile", self)  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        """Seconds of compiling on this thread so far."""
        return getattr(self._own, "seconds", 0.0)

    def watch(self, function: Callable[..., Any]) -> None:
        """Count the time in which a function is compiled."""
        self._watched.add(function)

    def on_start(self, event: event.Event) -> None:
        """Begin to count; before the first function of this process is compiled, say so."""
        if not event.data or event.data["dispatcher"].py_func not in self._watched:
            return
        if not self._has_told:
            self._has_told = True
            print(self._words(), file=sys.stderr, flush=True)
        self._own.depth = getattr(self._own, "depth", 0) + 1
        if self._own.depth == 1:  # compiling a caller compiles its inner functions in between
            self._own.since = perf_counter()

    def on_end(self, event: event.Event) -> None:
        """Count a finished compilation."""
        if not event.data or event.data["dispatcher"].py_func not in self._watched:
            return
        self._own.depth -= 1
        if self._own.depth == 0:
            self._own.seconds = self.seconds + perf_counter() - self._own.since

    def _words(self) -> str:
        if self.is_kept:
            return f"compiling the planner once on this machine, {SOME_SECONDS}"
        return (
            f"compiling the planner, {SOME_SECONDS}, in every process: it cannot be kept in "
            f"{user_folder()} or in a private folder for temporary files; "
            "set NUMBA_CACHE_DIR to a folder that can be written"
        )


COMPILE_CLOCK = CompileClock()


def compile_seconds() -> float:
    """Return the seconds that this thread has spent compiling the planner so far."""
    return COMPILE_CLOCK.seconds


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Measure a piece of work; its seconds are there once it is done.

    >>> with stopwatch() as watch:
    ...     total = sum(range(1000))
    >>> watch.seconds > 0, watch.compile_s
    (True, 0.0)
    """
    found = Stopwatch()
    start, compiled = perf_counter(), COMPILE_CLOCK.seconds
    try:
        yield found
    finally:
        found.compile_s = COMPILE_CLOCK.seconds - compiled
        found.seconds = perf_counter() - start - found.compile_s


_Impl: Any = FunctionCache._impl_class  # Any: numba's caches have no types


class _CacheImpl(_Impl):  # type: ignore[misc]
    """Finds the first folder for compiled code that can be written, but not by others."""

    _locator_classes = (_GivenLocator, _UserLocator, _PrivateLocator)


class _Cache(FunctionCache):
    """A compiled function on disk, valid as long as the code that it calls is the same.

    Numba itself checks only whether the function's own file has changed, and raises if it cannot
    read its cache files. Here such files are written anew, or every process compiles the function.
    """

    _impl_class = _CacheImpl

    # A truncated or foreign pickle may raise any exception.
    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the code for a signature, cached or shipped; ``None`` if there is neither."""
        try:
            found = super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
            if found is None and (data := self.shipped().load(self.shipped_key(sig))) is not None:
                found = self._impl.rebuild(target_context, data)
        except Exception:
            return None
        return found

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save compiled code; start a new index where the old one is unreadable."""
        try:
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        except Exception:
            try:
                self.flush()  # type: ignore[no-untyped-call]
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
            except Exception:
                COMPILE_CLOCK.is_kept = False

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        key = super()._index_key(sig, codegen)  # type: ignore[no-untyped-call]
        return (*key, *_sources(_linked(self._py_func)))

    def shipped(self) -> Any:
        """Return numba's index of the code that a release ships for this function."""
        return IndexDataCacheFile(str(SHIPPED), self._impl.filename_base, "shipped")  # type: ignore[no-untyped-call]

    def shipped_key(self, sig: Any) -> Any:
        """Return the key in it: the types, and the sources that the code was made from.

        The processor is not part of it: a wheel's code is for any processor of an architecture.
        """
        return (sig, *_sources(_linked(self._py_func)))


def _linked(function: Callable[..., Any], known: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    """Return a function, and all compiled functions that are linked into it, unwrapped."""
    known = (*known, function)
    # `co_names` lists attributes as well: a global of that name is one source too many, no harm.
    for name in function.__code__.co_names:
        called: Any = function.__globals__.get(name)  # Any: numba's types miss `py_func`
        if is_jitted(called) and called.py_func not in known:
            known = _linked(called.py_func, known)
    return known


def _sources(functions: Iterable[Callable[..., Any]]) -> list[str]:
    """Return the inputs of the compiled code: hashes of files, and values of global constants.

    Numba copies the values of globals into the code. A constant imported from another file is not
    in the hashed files, so its value must be part of the key.
    """
    constants = {
        f"{name}={value!r}"
        for function in functions
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), _CONSTANTS)
    }
    return [*map(_content, sorted({f.__code__.co_filename for f in functions})), *sorted(constants)]


@functools.cache
def _content(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
