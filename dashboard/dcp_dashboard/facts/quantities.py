"""Writes numbers for people: three significant digits and a unit, the same on every page.

A no-break space stands between number and unit, so no line ends inside a quantity.
"""

import math
from collections.abc import Callable, Iterable, Mapping

SPACE = "\u00a0"
Units = tuple[tuple[str, float], ...]
Text = Callable[[float], str]
SECONDS: Units = (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
BYTES: Units = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))
COUNTS: Units = (("M", 1e6), ("G", 1e9), ("T", 1e12))


def count(value: float) -> str:
    """Write a whole number with separators, from one million on with a unit."""
    if value < 1e6:
        return f"{value:,.0f}"
    return _scaled(value, COUNTS)


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Write a number with its noun in singular or plural."""
    return f"{count(number)} {noun}{'' if number == 1 else plural}"


def size(size_bytes: float) -> str:
    """Write bytes in decimal units."""
    if size_bytes < 1000:
        return f"{size_bytes:.0f}{SPACE}B"
    return _scaled(size_bytes, BYTES)


def duration(seconds: float) -> str:
    """Write a time in ns, µs, ms or s."""
    if seconds < 1e-6:
        # Traces count whole nanoseconds: a digit below them would mean nothing.
        return f"{seconds * 1e9:.0f}{SPACE}ns"
    return _scaled(seconds, SECONDS)


def alike(values: Iterable[float], text: Text) -> Text:
    """Return how to write the values of a column: as `text` does, in the unit of the largest.

    If the largest is below ten of its unit and the least below a hundredth, the next smaller unit
    writes both. A value below a thousandth of the unit keeps its own, instead of six zeros.
    """
    sizes = [abs(value) for value in values if value]
    units, most = _UNITS.get(text, ()), max(sizes, default=0.0)
    # `percent` and `ratio` have no units; counts below a million are written out.
    if not units or most < units[0][1]:
        return text
    unit = _unit(most, units)
    if most < 10 * unit[1] and min(sizes) < unit[1] / 100:
        unit = units[max(0, units.index(unit) - 1)]
    least = unit[1] / 1000
    return lambda value: text(value) if 0 < abs(value) < least else _scaled(value, (unit,))


def constant(name: str, value: float) -> str:
    """Write a constant of a cluster, whose name ends with its unit; a rate of 0 is infinite."""
    if not name.endswith("_per_s"):
        return duration(value)
    if not value:
        return "infinite"
    return f"{count(value)}FLOP/s" if name.endswith("flops_per_s") else f"{size(value)}/s"


def percent(fraction: float) -> str:
    """Write a fraction as per cent."""
    return f"{digits(100 * fraction)}{SPACE}%"


def ratio(value: float) -> str:
    """Write max/mean and the like with two decimals, three digits at least."""
    return f"{value:,.{2 if value < 10 else 1 if value < 100 else 0}f}"


def times(value: float) -> str:
    """Write a factor."""
    return f"{ratio(value)}\u00d7"


def signed(difference: float, text: Text) -> str:
    """Write a difference with its sign; a real minus sign is as wide as the plus."""
    written = text(abs(difference))
    if written == text(0):  # a difference that its text does not show has no sign
        return written
    return ("−" if difference < 0 else "+") + written  # noqa: RUF001 - a minus


def _scaled(value: float, units: Units) -> str:
    unit, factor = _unit(value, units)
    return f"{digits(value / factor)}{SPACE}{unit}"


def _unit(value: float, units: Units) -> tuple[str, float]:
    """Return the largest unit that is not above a value, the smallest one if all are."""
    return next((found for found in reversed(units) if value >= found[1]), units[0])


def digits(value: float) -> str:
    """Write three significant digits."""
    if value == 0:
        return "0"
    # Two digits behind the first one that is not 0; above 1,000 all digits before the point stay.
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


_UNITS: Mapping[Text, Units] = {count: COUNTS, size: BYTES, duration: SECONDS}
"""Units by the function that writes with them; at the end, since the functions are its keys."""
