"""Data sets of the library `datasets`: by name, or as a folder that it saved. Its adapter."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcp_dsl.errors import DatasetError

if TYPE_CHECKING:
    import pyarrow as pa

HUB = "hf:"
_MARKS = ("state.json", "dataset_dict.json")  # what `save_to_disk` leaves in a folder


def is_saved_dataset(path: Path) -> bool:
    """Whether `datasets.save_to_disk` wrote this folder."""
    return any(os.path.isfile(path / name) for name in _MARKS)  # False for impossible names


def load_tables(path: str) -> "Iterator[tuple[str, pa.Table]]":
    """Give the splits of a data set as (name, rows), mapped from disk.

    Args:
        path: ``hf:NAME``, ``hf:NAME:SPLIT``, or a folder that `save_to_disk` wrote.

    Raises:
        DatasetError: if `datasets` is not installed or cannot load it.
    """
    library = _library()
    name, _, split = path.removeprefix(HUB).partition(":")
    try:
        if path.startswith(HUB):
            found = library.load_dataset(name, split=split or None)
        else:
            found = library.load_from_disk(path)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        # What the library raises for unknown names, no network and damaged folders.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path}: `datasets` cannot load it: {reason}") from None
    if not isinstance(found, dict):
        found = {split: found}
    for key, rows in found.items():
        plain = rows.flatten_indices() if rows._indices is not None else rows
        yield (f"{path}/{key}" if key and not split else path), plain.data.table


def _library() -> Any:  # Any: a module that may be missing
    try:
        import datasets
    except ImportError:
        raise DatasetError(
            "Hugging Face data sets need the library `datasets`: pip install 'dcp-dsl[hf]'"
        ) from None
    return datasets
