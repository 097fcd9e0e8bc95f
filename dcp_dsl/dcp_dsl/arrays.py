"""Checked, read-only arrays: every value that passes between stages is made of them."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


def sealed(array: NDArray[Any]) -> NDArray[Any]:  # Any: elements of every type
    """Make an array read-only that nobody else holds, so that `readonly` need not copy it.

    >>> sealed(np.arange(3)).flags.writeable
    False
    """
    array.setflags(write=False)
    return array


def readonly(
    name: str, values: ArrayLike, dtype: type[np.generic], shape: tuple[int | None, ...]
) -> NDArray[Any]:  # Any: the element type is the run-time argument `dtype`
    """Return `values` as a read-only array of `dtype` and `shape`.

    Integers are narrowed only when every value fits. An array that is already read-only and of the
    right type is returned as it is, without a copy.

    Args:
        name: how the message calls the array, for example ``"BatchShape.cu_seqlens"``.
        values: anything numpy can turn into an array.
        dtype: element type of the result.
        shape: expected shape; ``None`` stands for any length of that dim.

    Raises:
        ValueError: if the number of dims, a length or a value does not fit.

    >>> readonly("x", [1, 2], np.int32, (None,)).flags.writeable
    False
    >>> readonly("x", [1, 2], np.int32, (3,))
    Traceback (most recent call last):
    ...
    ValueError: x: expected shape (3,), got (2,)
    """
    given = np.asarray(values)
    if given.ndim != len(shape) or any(
        want is not None and want != got for want, got in zip(shape, given.shape, strict=True)
    ):
        want_text = str(tuple("*" if n is None else n for n in shape)).replace("'", "")
        raise ValueError(f"{name}: expected shape {want_text}, got {given.shape}")
    if given.dtype == dtype and not given.flags.writeable:
        return given
    array = given.astype(dtype)  # always a copy: nobody else can hold a writeable view
    if given.dtype != dtype and not np.array_equal(array, given):
        raise ValueError(f"{name}: values of {given.dtype} do not fit into {np.dtype(dtype)}")
    array.setflags(write=False)
    return array
