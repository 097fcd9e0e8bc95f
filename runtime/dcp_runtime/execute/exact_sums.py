"""Sums of gradients that have the same bits in whatever order their terms are added.

A term is cut into digits: whole numbers below ``2**BITS`` at places that do not depend on the other
terms, powers of ``2**BITS``. Digits of one place add up without rounding. A row of a head keeps the
first few places below the largest term so far, which is the same in any order, too.

Source: binned sums, after Demmel and Nguyen, Parallel Reproducible Summation (2015).
"""

import torch
from torch import Tensor

BITS = 18  # bits of a digit. An int32 holds the digits of 2**13 terms of each sign and more
_EMPTY = 0  # place of a row without terms, of zeros only: its state is all zeros
_ORIGIN = 256  # place of the numbers around 1
_LOST = 1 << 20  # place of a row with a term that is not finite; it becomes NaN
_LEAST = -56  # least place, where float64 still holds the factor of a digit; smaller terms are 0


def digits_of(dtype: torch.dtype) -> int:
    """Return how many digits an element of a sum has, by the type of the tensors."""
    return {2: 2, 4: 3, 8: 4}[dtype.itemsize]


class ExactSums:
    """Sums of rows ``[2, Hkv, D]`` as digits, on the device of `like`, ``[..., 2, Hkv, D]``."""

    def __init__(self, rows: int, like: Tensor, digits: int) -> None:
        two, heads, dim = like.shape[-3:]
        self.place = like.new_zeros(rows, two, heads, dtype=torch.int32)
        self.digits = like.new_zeros(rows, digits, two, heads, dim, dtype=torch.int32)

    def clear(self) -> None:
        """Let all sums begin."""
        self.place.zero_()
        self.digits.zero_()

    def add(self, rows: slice, terms: Tensor) -> None:
        """Add a term ``[n, 2, Hkv, D]`` to each of some rows."""
        wide = terms.double()
        largest = wide.abs().amax(-1)
        exponent = torch.frexp(largest).exponent.long()
        place = exponent.div(BITS, rounding_mode="floor").clamp_min(_LEAST) + _ORIGIN
        place = torch.where(largest == 0, _EMPTY, place)
        place = torch.where(torch.isfinite(largest), place, _LOST).int()
        top = torch.maximum(self.place[rows], place)
        self._move(rows, top)
        found, digits = self.digits[rows], []
        left = wide * _power(BITS * (_ORIGIN - top.long().clamp_max(2 * _ORIGIN))).unsqueeze(-1)
        for _ in range(found.shape[1]):
            digit = left.round()
            digits.append(digit)
            left = (left - digit) * (1 << BITS)  # exact: a difference has fewer bits
        # NaN is no whole number; its row is lost in any case.
        found += torch.stack(digits, 1).nan_to_num_(0.0, 0.0, 0.0).int()

    def merge(self, rows: slice, place: Tensor, digits: Tensor) -> None:
        """Add sums of other terms, as they travelled, to some rows."""
        top = torch.maximum(self.place[rows], place)
        self._move(rows, top)
        self.digits[rows] += _moved(digits, top - place)

    def value(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return the sums of the first rows, ``[count, 2, Hkv, D]``."""
        place, digits = self.place[:count].long(), self.digits[:count].long()
        # Sums of digits may reach into the next place, in one order more than in another. Carried
        # over, they are one number in one way, so that its float64 is rounded in one way, too.
        for number in range(digits.shape[1] - 1, 0, -1):
            carry = (digits[:, number] + (1 << BITS - 1)) >> BITS
            digits[:, number] -= carry << BITS
            digits[:, number - 1] += carry
        total = torch.zeros_like(digits[:, 0], dtype=torch.float64)
        for number in range(digits.shape[1] - 1, -1, -1):
            total = digits[:, number] + total / (1 << BITS)
        total *= _power(BITS * (place.clamp_max(2 * _ORIGIN) - _ORIGIN)).unsqueeze(-1)
        return total.masked_fill_((place >= _LOST).unsqueeze(-1), torch.nan).to(dtype)

    def _move(self, rows: slice, top: Tensor) -> None:
        """Bring some rows to higher places; the digits below fall away."""
        self.digits[rows] = _moved(self.digits[rows], top - self.place[rows])
        self.place[rows] = top


def _moved(digits: Tensor, by: Tensor) -> Tensor:
    """Move digits ``[n, K, 2, Hkv, D]`` down by so many places, ``[n, 2, Hkv]``."""
    found, by = torch.zeros_like(digits), by.unsqueeze(-1)
    for steps in range(digits.shape[1]):
        for number in range(steps, digits.shape[1]):
            found[:, number] += torch.where(by == steps, digits[:, number - steps], 0)
    return found


def _power(exponent: Tensor) -> Tensor:
    """Return powers of two in float64, from their bits: a library's may be off by one."""
    return (exponent.clamp(-1022, 1023) + 1023 << 52).view(torch.float64)
