"""Which mask each layer uses: of one sample, and of the samples of a batch together."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import TypeAlias

from dcp_dsl import DatasetError, Mask, Stack

MOST_LAYERS = 4096
"""Layers after which the cycles of a batch have to repeat."""

Slot: TypeAlias = tuple[int, ...]
"""For every sequence of a batch the number of the mask that it has in some layer."""


@dataclass(frozen=True, slots=True)
class LayerMasks:
    """The masks of one sample, layer by layer.

    Attributes:
        masks: the different ones.
        cycle: for each layer the number of its mask; repeats over the layers of a model.
    """

    masks: tuple[Mask, ...]
    cycle: tuple[int, ...]

    @classmethod
    def of(cls, value: Mask | Stack) -> "LayerMasks":
        """Give the masks of a stack, or one mask for all layers.

        Raises:
            HeadError: if KV heads of one layer have different masks.
        """
        if isinstance(value, Mask):
            return cls((value,), (0,))
        return cls(value.masks, value.cycle())


def join_cycles(cycles: Sequence[tuple[int, ...]]) -> tuple[tuple[Slot, ...], tuple[int, ...]]:
    """Give the different slots of a batch, and for each layer the number of its slot.

    Args:
        cycles: of every sequence, the number of its mask by layer.

    Raises:
        DatasetError: if the cycles do not repeat together within `MOST_LAYERS`.

    >>> join_cycles([(0, 0, 1), (2,)])
    (((0, 2), (1, 2)), (0, 0, 1))
    """
    period = lcm(*map(len, cycles))
    if period > MOST_LAYERS:
        raise DatasetError(
            f"the stacks of a batch repeat together after {period} layers only, at most "
            f"{MOST_LAYERS} are planned; pack rows of one stack into a batch"
        )
    number: dict[Slot, int] = {}
    layers = [
        number.setdefault(tuple(c[layer % len(c)] for c in cycles), len(number))
        for layer in range(period)
    ]
    return tuple(number), tuple(layers)
