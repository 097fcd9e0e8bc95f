"""The float32 or float64 sums of an attention call, and their conversion to results."""

import torch
from torch import Tensor

from dcp_runtime.plans.own_sums import OwnSums


class Sums:
    """The sums of one kind over the rows of a buffer, and the results of the own rows.

    Args:
        like: the buffer with these rows, in the type of the results.
        num_local: own rows, which come first.
        dtype: of the sums.
        others: the own rows whose sums no table begins or ends; ``None`` if the kernel begins and
            ends none at all.
        is_split: whether results are one tensor per index of dim 1: dk and dv.
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
        self.wide = like.new_empty(rows, *like.shape[1:], dtype=dtype)
        for blank in own.blank:
            self.wide[blank].zero_()
        self._left, self._num_local, self._dtype = own.left, num_local, like.dtype
        self._parts = self.wide.unbind(1) if is_split else (self.wide,)
        self.results: tuple[Tensor, ...] | None = None
        if others:
            shapes = [part.shape[1:] for part in self._parts]
            self.results = tuple(like.new_empty(num_local, *shape) for shape in shapes)

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
            return tuple(own_rows(part, self._num_local, self._dtype) for part in self._parts)
        for rows in self._left:
            for result, part in zip(self.results, self._parts, strict=True):
                result[rows] = part[rows]
        return self.results


def own_rows(buffer: Tensor, count: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the first rows in memory of their own.

    Layers keep their results, and a view would keep the receive buffer behind it alive as well.
    """
    rows = buffer[:count]
    is_whole = rows.nbytes == buffer.untyped_storage().nbytes()
    return rows.to(dtype or rows.dtype, copy=not is_whole, memory_format=torch.contiguous_format)
