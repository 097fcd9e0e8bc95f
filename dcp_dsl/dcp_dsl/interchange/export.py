"""A mask in somebody else's format: named arrays, a few values, and perhaps Python source."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.errors import ExchangeError

FormatName: TypeAlias = Literal["dense", "dcp", "flashmask", "magi", "varlen", "flex", "flash4"]
FORMATS: tuple[FormatName, ...] = get_args(FormatName)
Value: TypeAlias = int | bool | str


@dataclass(frozen=True, slots=True, eq=False)
class Export:
    """One mask on one sample in the format of a kernel.

    Attributes:
        format: one of `FORMATS`.
        num_tokens: rows, and keys, of the mask.
        arrays: by name; docs/interchange.md says what each format has.
        values: what is no array, by name.
        source: Python source, or an empty text.
    """

    format: str
    num_tokens: int
    arrays: Mapping[str, NDArray[Any]]  # Any: the element type is the format's
    values: Mapping[str, Value] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ExchangeError(
                f"expected a format out of {', '.join(FORMATS)}, got {self.format!r}"
            )
        arrays = {name: np.array(value) for name, value in self.arrays.items()}
        for value in arrays.values():
            value.setflags(write=False)
        object.__setattr__(self, "arrays", arrays)

    def integers(self, name: str, *shape: int | None) -> NDArray[np.int64]:
        """Give an array of integers, checked; `shape` as in `readonly`, leading 1s are dropped.

        Raises:
            ExchangeError: if it is missing, of another shape, or holds something else.
        """
        if name not in self.arrays:
            have = ", ".join(self.arrays) or "none"
            raise ExchangeError(f"{self.format}: expected an array `{name}`, got {have}")
        array = self.arrays[name]
        while array.ndim > len(shape) and array.shape[0] == 1:
            array = array[0]
        fits = array.ndim == len(shape) and all(
            want is None or want == got for want, got in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in "iub":
            want = ", ".join("*" if n is None else str(n) for n in shape)
            raise ExchangeError(
                f"{self.format}: expected `{name}` to be integers of shape ({want}), got "
                f"{array.dtype} of shape {self.arrays[name].shape}"
            )
        return array.astype(np.int64)


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """What a format leaves open.

    Attributes:
        block_q, block_kv: tokens per block, for the formats with block tables.
        title: what the mask is called in written source.
    """

    block_q: int = 128
    block_kv: int = 128
    title: str = "mask"
