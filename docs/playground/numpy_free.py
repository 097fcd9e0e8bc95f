"""Let the language's checks run where there is no numpy: in a browser.

Parsing, checking, proving and formatting need none. What does is replaced before it is imported:
masks on samples come from `stand_ins`, everything else that wants numpy is a name without meaning.
With numpy (a wheel given when the site was built) nothing is replaced.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NUMERIC = (  # loaded by what checks texts, though it works on arrays
    "numpy", "dcp_dsl.forms", "dcp_dsl.symbolic", "dcp_dsl.core.columns",
    "dcp_dsl.core.per_token", "dcp_dsl.core.frame", "dcp_dsl.core.layout",
)  # fmt: skip


class _Name(type):
    """A class that may stand where numpy's types do, in annotations."""

    def __getitem__(cls, item: object) -> type:
        return cls

    def __or__(cls, other: object) -> Any:  # Any: stands for every type
        return cls

    __ror__ = __or__


class _Nothing(metaclass=_Name):
    """Stands for every name of numpy."""


class _Module(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing


class _Finder(MetaPathFinder, Loader):
    """Finds empty modules in place of those that need numpy."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Return the place of an empty module; None for all others."""
        if not any(name == root or name.startswith(f"{root}.") for root in NUMERIC):
            return None
        return ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the module, with what stands in for its functions."""
        module = _Module(spec.name)
        from stand_ins import STAND_INS  # loaded on use: it imports the language itself

        for name, value in STAND_INS.get(spec.name, {}).items():
            setattr(module, name, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


def install() -> None:
    """Replace what needs numpy, for all imports from now on."""
    sys.meta_path.insert(0, _Finder())
