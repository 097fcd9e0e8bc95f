"""How a number is spread over the rows of a data set."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

BARS = "▁▂▃▄▅▆▇█"
MAX_BINS = 12


@dataclass(frozen=True, slots=True)
class Distribution:
    """The spread of some values.

    Attributes:
        count: how many values.
        smallest, median, mean, largest: of them; 0 without values.
        total: their sum.
        edges: ``B + 1`` borders of equally wide bins, on a logarithmic scale for lengths.
        bins: ``B`` counts.
    """

    count: int
    smallest: float
    median: float
    mean: float
    largest: float
    total: float
    edges: tuple[float, ...]
    bins: tuple[int, ...]

    @classmethod
    def of(cls, values: "NDArray[Any]", *, is_logarithmic: bool = False) -> "Distribution":
        """Describe values; the bins of a logarithmic scale double.

        >>> Distribution.of(np.array([1, 2, 3, 9]), is_logarithmic=True).bins
        (1, 2, 0, 1)
        """
        if not len(values):
            return cls(0, 0, 0, 0, 0, 0, (), ())
        edges = _doubling(values) if is_logarithmic else _even(values)
        bins, _ = np.histogram(values, edges)
        return cls(
            len(values), values.min().item(), float(np.median(values)), float(values.mean()),
            values.max().item(), values.sum().item(), tuple(edges.tolist()), tuple(bins.tolist()),
        )  # fmt: skip

    def bars(self) -> str:
        """Draw the bins as bars of eight heights; a bin with any value in it shows one."""
        most = max(self.bins, default=0)
        return "".join(
            " " if not count else BARS[min(7, 8 * count // (most + 1))] for count in self.bins
        )

    def to_json(self) -> dict[str, Any]:  # Any: numbers, ready for json.dumps
        """Give all fields but the total of shares."""
        return {
            "count": self.count, "min": self.smallest, "median": self.median, "mean": self.mean,
            "max": self.largest, "total": self.total, "edges": list(self.edges),
            "bins": list(self.bins),
        }  # fmt: skip


def _doubling(values: "NDArray[Any]") -> NDArray[Any]:
    first = int(np.log2(max(1, values.min())))
    last = int(np.log2(max(1, values.max()))) + 1
    step = -(-(last - first) // MAX_BINS)
    edges = 2.0 ** np.arange(first, last + step, step)
    edges[0] = min(edges[0], values.min())
    return edges


def _even(values: "NDArray[Any]") -> NDArray[np.float64]:
    low, high = float(values.min()), float(values.max())
    return np.linspace(low, high, 9) if high > low else np.array([low, low + 1])
