"""The functions of one whole number that rise with it, such as the logarithm, in one table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dcp_dsl.arrays import Ints


class RisingFunction(NamedTuple):
    """A function of whole numbers that never falls, and is undefined outside one range.

    Attributes:
        least, most: where it is defined, both included.
        of: its value at a number; `of(most)` is below 2**62.
        of_all: its values at an array of such numbers.
    """

    least: int
    most: int
    of: Callable[[int], int]
    of_all: Callable[["Ints"], "Ints"]

    def at(self, value: int) -> int | None:
        """Return the value at a number; None where it is undefined.

        >>> RISING_FUNCTIONS["log2"].at(1000), RISING_FUNCTIONS["log2"].at(0)
        (9, None)
        """
        return self.of(value) if self.least <= value <= self.most else None


def _exp2_of_all(values: "Ints") -> "Ints":
    return 1 << values


def _log2_of_all(values: "Ints") -> "Ints":
    import numpy as np  # here: the playground reads this table without numpy

    return np.searchsorted(2 ** np.arange(63), values, side="right") - 1


RISING_FUNCTIONS = {
    # The product of two powers stays within int64.
    "exp2": RisingFunction(0, 30, lambda x: 1 << x, _exp2_of_all),
    "log2": RisingFunction(1, 2**62, lambda x: x.bit_length() - 1, _log2_of_all),
}
"""Rising functions by name."""
