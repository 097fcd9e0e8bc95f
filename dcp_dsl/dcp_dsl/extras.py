"""Libraries that only some commands need: which extra brings them, and the line to type."""

import re
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec

_REQUIREMENT = re.compile(r"([\w.-]+).*extra == ['\"]([\w-]+)")
# Libraries that are imported under another name than they are installed by.
_MODULES = {"pillow": "PIL", "flash-attn-4": "flash_attn"}


def install_line(extra: str) -> str:
    """Return the way out where libraries of an extra are missing."""
    return f"install it: pip install 'dcp-dsl[{extra}]'"


def extra_of(module: str) -> str | None:
    """Return the smallest extra that brings a library, ``None`` if there is none."""
    wanted = module.partition(".")[0]
    # `numba` is in `plan`, and in `run`, which contains it: the smaller one is enough.
    sizes = [
        (len(found), extra)
        for extra, found in _extras().items()
        if wanted in found and extra != "dev"
    ]
    return min(sizes)[1] if sizes else None


def missing_libraries(extra: str) -> list[str]:
    """Return the libraries of an extra that are not installed."""
    return [module for module in sorted(_extras()[extra]) if find_spec(module) is None]


def named_by_extra(load: Callable[[str], object], extra: str) -> Callable[[str], object]:
    """Have a package that loads its names on first use say which extra it needs."""

    def load_or_explain(name: str) -> object:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if extra_of(error.name or "") is None:
                raise
            raise ModuleNotFoundError(
                f"`{name}` needs the library {error.name!r}, which is not installed; "
                f"{install_line(extra)}",
                name=error.name,
            ) from None

    return load_or_explain


def _extras() -> defaultdict[str, set[str]]:
    """Return the libraries of each extra, by the names under which they are imported."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        lines = requires("dcp-dsl") or ()
    except PackageNotFoundError:  # the source is on the path, but not installed
        lines = ()
    found = defaultdict(set)
    for name, extra in (m.groups() for m in map(_REQUIREMENT.match, lines) if m):
        found[extra].add(_MODULES.get(name, name.replace("-", "_")))
    return found
