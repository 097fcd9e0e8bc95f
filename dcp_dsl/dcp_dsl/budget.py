"""Limit the work that one text or sample may cause.

Steps are counted, not timed, so that all machines refuse the same input.
"""

from dataclasses import dataclass

MAX_TOKENS = 2**31 - 1  # of a sample


class OverBudget(Exception):
    """The work allowed is used up."""


@dataclass(slots=True)
class Budget:
    """The elementary steps still allowed; everything that one call evaluates shares them.

    >>> budget = Budget(10)
    >>> budget.spend(7)
    >>> budget.left
    3
    """

    left: int

    def spend(self, steps: int) -> None:
        """Use steps up.

        Raises:
            OverBudget: if fewer are left.
        """
        self.left -= steps
        if self.left < 0:
            raise OverBudget
