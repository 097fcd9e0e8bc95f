"""Integer functions of one position, affine by pieces, and bands of rows to evaluate them on.

`q // c`, `k.doc` and `clamp(q, 4, 9)` are such functions. The difference of the two sides of a
comparison is one function of q plus one of k. A band is a run of rows with the keys that matter
there.
"""

from dataclasses import dataclass

import numpy as np

from dcp_dsl.arrays import Bools, Ints, expand

# Sums of a few such values fit into int64 with room to spare; products are judged before they are
# made (`Piecewise.scale`).
MAX_VALUE = 2**50
MAX_PIECES = 2**21


class TooManyPieces(Exception):
    """The exact answer falls into more pieces than can be handled in a fraction of a second."""


def limit_pieces(count: float, most: int, what: str) -> None:
    """Refuse more pieces than `most`, before they are made; `what` says of which kind."""
    if count > most:
        raise TooManyPieces(f"{int(count):_} {what}, at most {most:_} are handled")


class ValueTooLarge(Exception):
    """A value left the range in which int64 arithmetic is safe."""


@dataclass(frozen=True, slots=True, eq=False)
class Piecewise:
    """A function on positions ``0..num_tokens-1``.

    Attributes:
        num_tokens: number of positions, at least 1.
        starts: int64 ``[P]``, first position of each piece; begins with 0, rises.
        values: int64 ``[P]``, value there.
        slopes: int64 ``[P]``, change per position.
        is_defined: bool ``[P]``.
    """

    num_tokens: int
    starts: Ints
    values: Ints
    slopes: Ints
    is_defined: Bools

    def __post_init__(self) -> None:
        if _largest(self.values) + _largest(self.slopes) * self.num_tokens > MAX_VALUE:
            raise ValueTooLarge

    @classmethod
    def position(cls, num_tokens: int) -> "Piecewise":
        """Return the identity."""
        return cls.affine(num_tokens, 0, 1)

    @classmethod
    def constant(cls, num_tokens: int, value: int) -> "Piecewise":
        """Return a constant."""
        return cls.affine(num_tokens, value, 0)

    @classmethod
    def affine(cls, num_tokens: int, value: int, slope: int) -> "Piecewise":
        """Return ``value + slope * position``."""
        # np.array makes objects of integers that do not fit, so they are refused before
        if abs(value) > MAX_VALUE or abs(slope) > MAX_VALUE:
            raise ValueTooLarge
        start, first, step = (np.array([number]) for number in (0, value, slope))
        return cls(num_tokens, start, first, step, np.ones(1, np.bool_))

    @property
    def lengths(self) -> Ints:
        """Positions in each piece, int64 ``[P]``."""
        lengths = np.empty_like(self.starts)
        lengths[:-1] = self.starts[1:]
        lengths[-1] = self.num_tokens
        lengths -= self.starts
        return lengths

    @property
    def last_values(self) -> Ints:
        """Value at the last position of each piece, int64 ``[P]``."""
        return self.values + self.slopes * (self.lengths - 1)

    @property
    def is_constant(self) -> bool:
        """True if the function has the same value everywhere."""
        is_flat = not self.slopes.any() and (self.values == self.values[0]).all()
        return bool(is_flat and self.is_defined.all())

    def is_same(self, other: "Piecewise") -> bool:
        """Return whether both are the same function on the same pieces."""
        if self is other:
            return True
        names = ("starts", "values", "slopes", "is_defined")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in names)

    def with_values(self, values: Ints, slopes: Ints) -> "Piecewise":
        """Return a function on the same pieces with other values."""
        return Piecewise(self.num_tokens, self.starts, values, slopes, self.is_defined)

    def at(self, tokens: Ints) -> tuple[Ints, Bools]:
        """Return values at positions, and whether the function is defined there."""
        piece = np.searchsorted(self.starts, tokens, side="right") - 1
        values = self.values[piece] + self.slopes[piece] * (tokens - self.starts[piece])
        return values, self.is_defined[piece]

    def on_all(self) -> tuple[Ints, Bools]:
        """Return the values at all positions, and whether the function is defined there."""
        starts, values, is_defined = self.starts, self.values, self.is_defined
        if len(starts) == self.num_tokens:  # a piece for each token, which begins there
            return values, is_defined
        lengths = self.lengths
        values, is_defined = np.repeat(values, lengths), np.repeat(is_defined, lengths)
        if self.slopes.any():
            lines = self.slopes, self.slopes * starts
            slope, risen = lines if len(starts) == 1 else (np.repeat(c, lengths) for c in lines)
            values = values + slope * np.arange(self.num_tokens) - risen
        return values, is_defined

    def joined(self) -> "Piecewise":
        """Return the same function; pieces that continue one another with one slope are joined."""
        ends = self.values + self.slopes * self.lengths
        is_new = np.ones(len(self.starts), np.bool_)
        is_new[1:] = (ends[:-1] != self.values[1:]) | (self.slopes[:-1] != self.slopes[1:])
        is_new[1:] |= self.is_defined[:-1] != self.is_defined[1:]
        return Piecewise(
            self.num_tokens, self.starts[is_new], self.values[is_new], self.slopes[is_new],
            self.is_defined[is_new],
        )  # fmt: skip

    def cut(self, knots: Ints) -> "Piecewise":
        """Return the same function with further pieces that begin at `knots` (rising, inside)."""
        if len(knots) == 0 or (len(knots) == 1 and knots[0] == 0):
            return self
        if len(self.starts) == 1:
            starts = knots if knots[0] == 0 else np.append(0, knots)
        else:
            starts = sorted_unique(np.concatenate([self.starts, knots]))
        if len(starts) == len(self.starts):
            return self
        piece = np.searchsorted(self.starts, starts, side="right") - 1
        values = self.values[piece] + self.slopes[piece] * (starts - self.starts[piece])
        return Piecewise(
            self.num_tokens, starts, values, self.slopes[piece], self.is_defined[piece]
        )

    def __add__(self, other: "Piecewise") -> "Piecewise":
        # a constant needs no cuts
        for one, many in ((self, other), (other, self)):
            if len(one.starts) == 1 and not one.slopes[0] and one.is_defined[0]:
                return many.shift(int(one.values[0]))
        a, b = self.cut(other.starts), other.cut(self.starts)
        return Piecewise(
            self.num_tokens, a.starts, a.values + b.values, a.slopes + b.slopes,
            a.is_defined & b.is_defined,
        )  # fmt: skip

    def scale(self, factor: int) -> "Piecewise":
        """Return ``factor`` times the function."""
        if factor != -1:  # the product may leave int64, so it is judged before it is made
            largest = max(1, _largest(self.values), _largest(self.slopes))
            if largest * abs(factor) > MAX_VALUE:
                raise ValueTooLarge
        return Piecewise(
            self.num_tokens, self.starts, self.values * factor, self.slopes * factor,
            self.is_defined,
        )  # fmt: skip

    def shift(self, amount: int) -> "Piecewise":
        """Return the function plus a constant."""
        if abs(amount) > MAX_VALUE:
            raise ValueTooLarge
        if amount == 0:
            return self
        return Piecewise(
            self.num_tokens, self.starts, self.values + amount, self.slopes, self.is_defined
        )

    def floor_divide(self, divisor: int | Ints) -> "Piecewise":
        """Return the function divided by a positive constant, or one for each piece, rounded down.

        A piece of slope s becomes one of slope ``s // divisor`` plus steps of one; a step every
        ``divisor / (s % divisor)`` positions.
        """
        divisor = np.broadcast_to(divisor, self.starts.shape)
        whole, part = self.slopes // divisor, self.slopes % divisor
        first = self.values
        last = first + part * (self.lengths - 1)  # without the whole part, which divides exactly
        steps = last // divisor - first // divisor
        limit_pieces(int(steps.sum()), MAX_PIECES, "steps of a quotient")
        piece, index = expand(0, steps + 1)
        level = (first // divisor)[piece] + index
        # The level is reached at ceil((level * divisor - first) / part) positions in.
        gap = np.maximum(level * divisor[piece] - first[piece], 0)
        offset = -(-gap // np.maximum(part[piece], 1))
        starts = self.starts[piece] + offset
        values = level + whole[piece] * offset
        return Piecewise(self.num_tokens, starts, values, whole[piece], self.is_defined[piece])

    def modulo(self, divisor: int) -> "Piecewise":
        """Return the remainder of dividing by a positive constant, never negative."""
        return self + self.floor_divide(divisor).scale(-divisor)

    def divide(self, op: str, divisor: "Piecewise") -> "Piecewise":
        """Return ``self // divisor`` or ``self % divisor``; undefined where the divisor is 0.

        The pieces of `divisor` are flat; ``%`` has its sign.
        """
        a, b = self.cut(divisor.starts), divisor.cut(self.starts)
        known = a.is_defined & b.is_defined & (b.values != 0)
        sign = np.where(known, np.sign(b.values), 0)
        size = np.where(known, np.abs(b.values), 1)
        number = Piecewise(self.num_tokens, a.starts, a.values * sign, a.slopes * sign, known)
        found = number.floor_divide(size)
        if op == "//":
            return found
        factor = -b.values[np.searchsorted(b.starts, found.starts, side="right") - 1]
        return a + found.with_values(found.values * factor, found.slopes * factor)

    def maximum(self, other: "Piecewise") -> "Piecewise":
        """Return the larger of two functions at each position."""
        a, b = self.cut(other.starts), other.cut(self.starts)
        gap, growth, lengths = a.values - b.values, a.slopes - b.slopes, a.lengths
        after = gap + growth * (lengths - 1)
        is_crossing = (np.sign(gap) * np.sign(after)) < 0
        # `gap` and `growth` have opposite signs here. A new piece begins right behind the meeting;
        # a position where both are equal still belongs to the piece before.
        steps = np.abs(gap) // np.maximum(np.abs(growth), 1) + 1
        knots = (a.starts + steps)[is_crossing]
        a, b = a.cut(knots), b.cut(knots)
        gap = a.values - b.values
        gap = np.where(gap == 0, a.slopes - b.slopes, gap)
        chosen = [np.where(gap >= 0, x, y) for x, y in ((a.values, b.values), (a.slopes, b.slopes))]
        return Piecewise(
            self.num_tokens, a.starts, chosen[0], chosen[1], a.is_defined & b.is_defined
        )

    def compose(self, inner: "Piecewise") -> "Piecewise":
        """Return ``self(inner(t))``, undefined where `inner` leaves the positions of this one."""
        last = inner.last_values
        # Each piece of `inner` is cut where it passes a border of this function: the borders above
        # its smallest value, up to its largest.
        borders = np.append(self.starts, self.num_tokens)
        low = np.searchsorted(borders, np.minimum(inner.values, last), side="right")
        high = np.searchsorted(borders, np.maximum(inner.values, last), side="right")
        counts = np.where(inner.slopes != 0, np.maximum(high - low, 0), 0)
        limit_pieces(int(counts.sum()), MAX_PIECES, "steps of a lookup")
        piece, passed = expand(low, counts)
        border = borders[passed]
        slope, value = inner.slopes[piece], inner.values[piece]
        # A rising piece passes on its first position at the border, a falling one on the first
        # below it. The 1 keeps the branch that is not taken from dividing by 0.
        up = -(-(border - value) // np.where(slope > 0, slope, 1))
        down = (value - border) // np.where(slope < 0, -slope, 1) + 1
        cuts = inner.starts[piece] + np.where(slope > 0, up, down)
        inner = inner.cut(sorted_unique(cuts)) if len(cuts) else inner
        inside = (inner.values >= 0) & (inner.values < self.num_tokens)
        at = np.searchsorted(self.starts, np.where(inside, inner.values, 0), side="right") - 1
        values = self.values[at] + self.slopes[at] * (inner.values - self.starts[at])
        is_defined = inside & inner.is_defined & self.is_defined[at]
        return Piecewise(
            inner.num_tokens, inner.starts, np.where(is_defined, values, 0),
            np.where(is_defined, self.slopes[at] * inner.slopes, 0), is_defined,
        )  # fmt: skip

    def solve(self, op: str, bound: int) -> tuple[Ints, Ints]:
        """Return the ranges of positions where the function is defined and ``f op bound`` holds.

        `op` is ``<=``, ``>=`` or ``==``. Starts and ends, int64 ``[M]``, rise; ranges never touch.
        """
        if op == "==":
            low, high, *_ = overlaps(*self.solve(">=", bound), *self.solve("<=", bound))
            return low, high
        # the rest solves `function <= limit`
        function, limit = (self, bound) if op == "<=" else (self.scale(-1), -bound)
        room = limit - function.values  # slope * offset <= room
        slope, length = function.slopes, function.lengths
        reach = np.where(slope == 0, np.where(room >= 0, length, 0), 0)
        up, down = slope > 0, slope < 0
        # rising: floor(room / slope) + 1 positions hold; falling: from ceil(-room / -slope) on
        reach = np.where(up, np.clip(room // np.where(up, slope, 1) + 1, 0, length), reach)
        begin = np.where(down, np.clip(-(room // np.where(down, -slope, 1)), 0, length), 0)
        end = np.where(down, length, reach)
        kept = (begin < end) & self.is_defined
        return _join_ranges((self.starts + begin)[kept], (self.starts + end)[kept])


def _largest(values: Ints) -> int:
    """Return the largest absolute value, as one of Python's integers, which do not overflow."""
    if len(values) == 1:
        return abs(int(values[0]))
    return max(int(values.max(initial=0)), -int(values.min(initial=0)))


def sorted_unique(values: Ints) -> Ints:
    """Return the distinct values, rising; the stable sort makes use of runs that rise already."""
    values = np.sort(values, kind="stable")
    if len(values) < 2:
        return values
    return np.compress(np.concatenate([[True], values[1:] != values[:-1]]), values)


def _join_ranges(starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Join ranges that touch; they come in order and do not overlap."""
    if len(starts) == 0:
        return starts, ends
    is_new = np.concatenate([[True], starts[1:] != ends[:-1]])
    return starts[is_new], ends[np.append(is_new[1:], True)]


@dataclass(frozen=True, slots=True, eq=False)
class Bands:
    """Rows ``[row_start, row_end)`` with keys ``[key_start, key_end)``; int64 ``[N]``, sorted."""

    row_start: Ints
    row_end: Ints
    key_start: Ints
    key_end: Ints

    def is_whole(self, num_tokens: int) -> bool:
        """Return whether there is a single band: the whole sample."""
        return (
            len(self.row_start) == 1
            and self.row_end[0] - self.row_start[0] == num_tokens
            and self.key_end[0] - self.key_start[0] == num_tokens
        )


def overlaps(low: Ints, high: Ints, starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Intersect every window ``[low, high)`` with the sorted, disjoint ranges that it overlaps.

    Return start, end, window and range of each, int64 ``[P]``; window after window.

    >>> low, high = np.array([0, 5]), np.array([3, 9])
    >>> [column.tolist() for column in overlaps(low, high, np.array([1]), np.array([6]))]
    [[1, 5], [3, 6], [0, 1], [0, 0]]
    """
    first = np.searchsorted(ends, low, side="right")
    counts = np.maximum(np.searchsorted(starts, high, side="left") - first, 0)
    window, index = expand(first, counts)
    begin: Ints = np.maximum(low[window], starts[index])
    end: Ints = np.minimum(high[window], ends[index])
    return begin, end, window, index
