"""The float32 or float64 sums of an attention call, and their conversion to results."""

import torch
from torch import Tensor

from dcp_runtime.plans.own_sums import OwnSums


class Sums:
    """The sums of one kind over the rows of a buffer, and the results of the own rows.

    Calls use the same memory one after the other; `begin` starts a call. `like` is the buffer, in
    the type of the results; own rows come first. `others` are the own rows whose sums no table
    begins or ends, ``None`` if the kernel begins and ends none at all. With `is_split` results are
    one tensor per index of dim 1: dk and dv.
    """

    def __init__(
        self,
        like: Tensor,
        num_local: int,
        dtype: torch.dtype,
        others: OwnSums | None,
        *,
        is_split: bool,
    ) -> None:
        own = others or OwnSums.of_all(num_local)
        rows = len(like) if own.is_kept or len(like) > num_local else 0
        # Sums of own rows only, in the type of the results, are the result: the caller keeps them.
        is_whole = rows == num_local and dtype == like.dtype
        self._is_result = others is None and is_whole and not is_split
        rows = 0 if self._is_result else rows
        self.wide = like.new_empty(rows, *like.shape[1:], dtype=dtype)
        self._blank, self._left = own.blank, own.left
        self._num_local, self._dtype = num_local, like.dtype
        self._is_split, self._count = is_split, like.shape[1] if is_split else 1
        # Of a result, if the kernel ends the sums.
        shape = (num_local, *like.shape[2 if is_split else 1 :])
        self._shape = None if others is None else shape
        self.results: tuple[Tensor, ...] | None = None

    def begin(self) -> None:
        """Set the sums to 0 that no table begins, and make new results."""
        if self._is_result:
            self.wide = self.wide.new_empty(self._num_local, *self.wide.shape[1:])
        for rows in self._blank:
            self.wide[rows].zero_()
        if self._shape is not None:
            self.results = tuple(
                self.wide.new_empty(self._shape, dtype=self._dtype) for _ in range(self._count)
            )

    @property
    def shared(self) -> Tensor | None:
        """The memory that calls share; ``None`` where the caller keeps it."""
        return None if self._is_result else self.wide

    @property
    def result(self) -> Tensor | None:
        """The one result, ``None`` if the kernel ends no sums."""
        return None if self.results is None else self.results[0]

    def poison(self) -> None:
        """Fill the results with NaN, which shows where no kernel has written to them."""
        for result in self.results or ():
            result.fill_(torch.nan)

    def finish(self) -> tuple[Tensor, ...]:
        """Return the results, when all sums are complete."""
        if self.results is None:
            if self._is_result:
                # Forgotten here: a graph may hang on it.
                given, self.wide = self.wide, self.wide.new_empty(0, *self.wide.shape[1:])
                return (given,)
            return tuple(own_rows(part, self._num_local, self._dtype) for part in self._parts())
        results, self.results = self.results, None
        for rows in self._left:
            for result, part in zip(results, self._parts(), strict=True):
                result[rows] = part[rows]
        return results

    def _parts(self) -> tuple[Tensor, ...]:
        return self.wide.unbind(1) if self._is_split else (self.wide,)


def own_rows(buffer: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """Copy the first rows to memory of their own: layers keep results, calls share buffers."""
    return buffer[:count].to(
        dtype or buffer.dtype, copy=True, memory_format=torch.contiguous_format
    )
