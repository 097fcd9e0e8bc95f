"""Errors that a person can cause, and the budget of work beyond which a text is refused.

```
DCPError                a message with what was expected, what was found, where, and the way out
├── SpecError           a .dcpm text that does not parse or check (`syntax.diagnostics`)
│   └── MaskCallError   a name or call that is no mask
├── DatasetError        a data set that cannot be read or lacks a column
├── ExchangeError       a mask that a kernel's format cannot hold, or arrays that hold no mask
└── (planner, runtime and dashboard derive their own)
```
The command line prints a `DCPError` as one message and exits with `exit_code`; anything else is
a bug. Work that one text or sample may cause is counted in steps, not timed, so that all machines
refuse the same input.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# C0 and C1 except tabs and line ends, controls of the writing direction, surrogates.
_CONTROL = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)"
)


def printable(text: str) -> str:
    r"""Spell out the characters that a terminal would obey, as escapes of Python.

    >>> printable("a\x1b[31mb\n")
    'a\\x1b[31mb\n'
    """
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def list_names(names: Iterable[str], none: str = "") -> str:
    """List names for a message; `none` stands for an empty list."""
    return ", ".join(f"`{name}`" for name in names) or none


class DCPError(Exception):
    """An error that a person can mend; its text is the whole message, without control characters.

    Attributes:
        reason: what is wrong, without `where` in front: a caller may know a better name for that.

    >>> str(DCPError("expected a length, got none", "sample"))
    'sample: expected a length, got none'
    """

    exit_code = 2

    def __init__(self, reason: str, where: str = "") -> None:
        self.reason = reason
        super().__init__(printable(f"{where}: {reason}" if where else reason))


class DatasetError(DCPError):
    """An unreadable data set or sample, or one with columns that do not fit the mask."""


class ExchangeError(DCPError):
    """A mask that a format cannot hold (with a code, X3xx), or arrays that are no mask (without).

    Attributes:
        code: ``"X301"`` and so on, explained in ``docs/diagnostics.md``; empty for wrong input.
    """

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(f"error[{code}]: {message}" if code else message)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # a refusal is a finding, bad input is not
        """Return 1 for a refusal, 2 for wrong input."""
        return 1 if self.code else 2


MAX_TOKENS = 2**31 - 1  # of a sample


class OverBudget(Exception):
    """The work allowed is used up."""


@dataclass(slots=True)
class Budget:
    """The elementary steps still allowed; everything that one call evaluates shares them."""

    left: int

    def spend(self, steps: int) -> None:
        """Use steps up.

        Raises:
            OverBudget: if fewer are left.
        """
        self.left -= steps
        if self.left < 0:
            raise OverBudget
