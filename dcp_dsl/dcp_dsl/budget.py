"""A limit on the work that one text or sample may cause.

Work is counted, not timed, so that the same input is refused on every machine or on none.
"""

from dataclasses import dataclass


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

    @property
    def is_spent(self) -> bool:
        """True if a step was refused."""
        return self.left < 0

    def spend(self, steps: int) -> None:
        """Use steps up.

        Raises:
            OverBudget: if fewer are left.
        """
        self.left -= steps
        if self.left < 0:
            raise OverBudget
