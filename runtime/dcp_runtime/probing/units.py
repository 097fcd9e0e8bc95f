"""Find the modules of a model that mix tokens, and the layers that they belong to."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from dcp_runtime.probing.calls import Call, find_numbers
from dcp_runtime.probing.reach import Reach

_PASSED_BY = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.SiLU, nn.GELU, nn.ReLU),
    *(nn.Conv1d, nn.Conv2d),
)
"""Modules that compute each token for itself; and convolutions, a part of what they stand in."""


class Unit(NamedTuple):
    """A call that mixes tokens.

    Attributes:
        call: the call.
        cut: calls inside that mix tokens and are units of their own, and embeddings.
        layer: from 0; ``None`` outside the layers.
    """

    call: Call
    cut: Sequence[Call]
    layer: int | None


def find_units(top: Call, tokens: int, passes: Counter[str]) -> list[Unit]:
    """Return the innermost calls that mix tokens, and those whose own code does, in their order."""
    _mark(top, tokens, passes)
    found: list[tuple[Call, list[Call]]] = []
    for call in (top, *top.descendants()):
        if call.mixes:
            mixing = [each for each in call.descendants() if each.mixes]
            inner = [each for each in mixing if not any(other.mixes for other in each.inside)]
            cut = [*_embeddings(call, tokens), *inner]
            if not inner or _mixes(call, cut, tokens, passes):
                found.append((call, cut))
    has_lists = any(_entry(call.name) for call, _ in found)
    numbers: dict[tuple[str, int], int] = {}
    calls, units = Counter[str](), []
    for call, cut in found:
        entry = _entry(call.name) if has_lists else call.name
        layer = None
        if entry or not has_lists:  # a module that runs again is another layer
            layer = numbers.setdefault((entry, calls[call.name]), len(numbers))
        calls[call.name] += 1
        units.append(Unit(call, cut, layer))
    return units


def _mark(call: Call, tokens: int, passes: Counter[str]) -> None:
    """Mark the innermost calls that mix tokens, and all calls around them."""
    for each in call.inside:
        _mark(each, tokens, passes)
    call.mixes = any(each.mixes for each in call.inside) or (
        not isinstance(call.module, _PASSED_BY)
        and _mixes(call, _embeddings(call, tokens), tokens, passes)
    )


def _mixes(call: Call, cut: Sequence[Call], tokens: int, passes: Counter[str]) -> bool:
    # Changes see what has no gradient: a kernel without one, or which tokens are the largest.
    reach = Reach(call, tokens, passes, cut)
    if reach.mixes():
        return True
    return reach.is_gradient and Reach(call, tokens, passes, cut, is_gradient=False).mixes()


def _embeddings(call: Call, tokens: int) -> list[Call]:
    """Return the embeddings inside a call that gets ids, not numbers."""
    if find_numbers(call.inputs, tokens):
        return []
    return [each for each in call.descendants() if isinstance(each.module, nn.Embedding)]


def _entry(name: str) -> str:
    """Return the entry of a list that a module is part of, as ``model.layers.3``, or nothing."""
    parts = name.split(".")
    at = next((n for n, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: at + 1])
