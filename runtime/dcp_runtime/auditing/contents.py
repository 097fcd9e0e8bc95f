"""What arguments and batches hold: token ids, targets behind them, borders between documents."""

import zlib
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

Ids: TypeAlias = NDArray[np.int64]


def own_part(value: Tensor) -> Tensor:
    """Return a tensor, of a `DTensor` the part of this rank."""
    return value._local_tensor if isinstance(value, DTensor) else value


def whole_ids(value: Tensor) -> Ids:
    """Return integers of a tensor as an array of its own."""
    found: Ids = own_part(value).detach().long().cpu().numpy().copy()
    return found


def check_sum(ids: Ids) -> int:
    """Return a number by which the same ids are known again, whatever their shape."""
    return zlib.crc32(np.ascontiguousarray(ids.flatten()).tobytes())


def row_sums(ids: list[Ids]) -> Ids:
    """Return a number for each sequence of ids ``[B, T]``, without what pads it at its ends."""
    rows = [row for each in ids if each.ndim > 1 for row in each.reshape(-1, each.shape[-1])]
    sums = [check_sum(row[slice(*_inside(row))]) for row in rows]
    return np.array(sums, np.int64)


def _inside(row: Ids) -> tuple[int, int]:
    """Return where a row begins and ends, if equal ids at an end count once."""
    changes = np.flatnonzero(np.diff(row))
    return (int(changes[0]), int(changes[-1]) + 2) if len(changes) else (0, 1)


def integers_of(given: Any) -> list[Tensor]:  # Any: arguments or a batch of a user
    """Return the tensors of integers in arguments, in batches and in what holds them."""
    if isinstance(given, Tensor):
        return [] if given.is_floating_point() or given.dtype == torch.bool else [given]
    if isinstance(given, dict):
        return [found for each in given.values() for found in integers_of(each)]
    if isinstance(given, list | tuple):
        return [found for each in given for found in integers_of(each)]
    if is_dataclass(given) and not isinstance(given, type):
        return [found for each in fields(given) for found in integers_of(getattr(given, each.name))]
    return []


def ids_before(ids: list[Ids], targets: int) -> Ids | None:
    """Return the token ids that predict so many targets, one each; `None` if none fit."""
    for each in ids:
        if each.size == targets:
            return each.flatten()
        if each.ndim == 2 and each.shape[0] * (each.shape[1] - 1) == targets:
            return each[:, :-1].flatten()
    return None


def borders_of(given: list[Ids]) -> list[int]:
    """Return where documents begin, the first left out, as far as one of the arrays says so.

    Positions say it by starting from 0 again, numbers of documents by going up one, and
    ``cu_seqlens`` by themselves.

    >>> borders_of([np.array([7, 5, 7]), np.array([0, 1, 0])])
    [2]
    """
    sizes = {each.size for each in given}
    for each in given:
        flat = each.flatten()
        if flat.size < 2 or flat[0] != 0:
            continue
        steps = np.diff(flat)
        restarts = np.flatnonzero(flat[1:] == 0) + 1
        if len(restarts) and np.all((steps == 1) | (flat[1:] == 0)):
            return [int(at) for at in restarts]
        if np.all((steps == 0) | (steps == 1)) and 0 < flat[-1] < flat.size - 1:
            return [int(at) + 1 for at in np.flatnonzero(steps == 1)]
        if flat.size > 2 and np.all(steps > 0) and int(flat[-1]) in sizes - {flat.size}:
            return [int(at) for at in flat[1:-1]]
    return []
