"""What a person can do wrong, as exceptions whose message is fit to print.

```
DCPError                a message with what was expected, what was found, where, and the way out
├── SpecError           a .dcpm text that does not parse or check; carries its diagnostics
├── DatasetError        a data set that cannot be read or lacks a column
└── (planner, runtime and dashboard derive their own)
```
The command line prints a `DCPError` as one message and exits with `exit_code`; anything else is
a bug.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dcp_dsl.diagnostics import Diagnostic


class DCPError(Exception):
    """An error that the person at the keyboard can mend; its text is the whole message."""

    exit_code = 2


class SpecError(DCPError):
    """A .dcpm text with errors: `diagnostics` holds all of them."""

    exit_code = 1

    def __init__(self, diagnostics: "tuple[Diagnostic, ...]") -> None:
        self.diagnostics = diagnostics
        super().__init__("\n\n".join(d.render() for d in diagnostics))


class DatasetError(DCPError):
    """A data set or sample that cannot be read, or whose columns do not fit the mask."""
