"""Read what a layer may see from the predicate by which transformers builds its mask.

transformers describes a mask by a function of a query and a key. Here it is asked about single
pairs, and found to be causal or not, with a window, with chunks, with both, or something else.
"""

from collections.abc import Callable
from math import gcd
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Predicate: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Of batch, head, query and key, as transformers' masks: int64 tensors that broadcast."""

LONGEST, SAMPLES = 2**20, 1024


class Visibility(NamedTuple):
    """What a layer may see; 0 for no window, and for no chunks."""

    window: int = 0
    chunk: int = 0
    is_causal: bool = True
    is_known: bool = True  # the mask is one of these


def visibility_of(predicate: Predicate | None, window: int | None, is_causal: bool) -> Visibility:
    """Return what a layer may see by its predicate, and by the window that its attention gets.

    Without a predicate, since the model asked for no mask, `is_causal` is what the layer says
    itself.

    >>> visibility_of(lambda b, h, q, k: (k <= q) & (k > q - 5), None, True)
    Visibility(window=5, chunk=0, is_causal=True, is_known=True)
    >>> visibility_of(lambda b, h, q, k: (k <= q) & (k // 6 == q // 6), 4, True)
    Visibility(window=4, chunk=6, is_causal=True, is_known=True)
    """
    found = Visibility(is_causal=is_causal) if predicate is None else _of_predicate(predicate)
    windows = [size for size in (found.window, window) if size]
    return found._replace(window=min(windows, default=0))


def _of_predicate(predicate: Predicate) -> Visibility:
    draw = torch.Generator().manual_seed(0)
    # Short and long sequences alike: as many queries below 2**10 as below 2**20.
    length = 2 ** torch.randint(4, LONGEST.bit_length(), (SAMPLES,), generator=draw, device="cpu")
    query = (torch.rand(SAMPLES, generator=draw, dtype=torch.float64, device="cpu") * length).long()
    key = (
        torch.rand(SAMPLES, generator=draw, dtype=torch.float64, device="cpu") * (query + 1)
    ).long()
    try:
        is_causal = not bool(_ask(predicate, query, query + 1).any())
        first = _first_key(predicate, query)
        # The search assumes that the visible keys are a run: ask about other keys, too.
        is_run = bool(_ask(predicate, query, query).all())
        is_run &= torch.equal(_ask(predicate, query, key), key >= first)
    except (IndexError, RuntimeError):  # it looks up tokens of the call
        return Visibility(is_known=False)
    if is_run:
        for window, chunk in _explanations(query, first):
            if torch.equal(first, _first_of(query, window, chunk)):
                return Visibility(window, chunk, is_causal)
    return Visibility(is_known=False)


def _ask(predicate: Predicate, query: Tensor, key: Tensor) -> Tensor:
    zero = torch.zeros_like(query)
    return torch.as_tensor(predicate(zero, zero, query, key), device="cpu").expand(query.shape)


def _first_key(predicate: Predicate, query: Tensor) -> Tensor:
    """Search the first visible key of each query, as if the visible keys were a run up to it."""
    low, high = torch.zeros_like(query), query
    for _ in range(LONGEST.bit_length()):
        middle = (low + high) // 2
        is_seen = _ask(predicate, query, middle)
        low, high = torch.where(is_seen, low, middle + 1), torch.where(is_seen, middle, high)
        low = torch.minimum(low, high)
    return high


def _explanations(query: Tensor, first: Tensor) -> list[tuple[int, int]]:
    """Return windows and chunks that may explain the first keys, the simplest first."""
    distance = int((query - first).max())
    inside = first[query - first < distance]  # the window does not cut these
    whole, cut = (gcd(*keys.tolist()) for keys in (first, inside))
    return [(0, 0), (distance + 1, 0), (0, whole), (distance + 1, cut)]


def _first_of(query: Tensor, window: int, chunk: int) -> Tensor:
    first = query - window + 1 if window else torch.zeros_like(query)
    return (
        torch.maximum(first.clamp(min=0), query // chunk * chunk) if chunk else first.clamp(min=0)
    )
