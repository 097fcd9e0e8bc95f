"""Find the modules of a model that mix tokens, and the layers that they belong to."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from dcp_runtime.probing.calls import ModuleCall, find_numbers
from dcp_runtime.probing.reach import ModuleReach

_PASSED_BY = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.SiLU, nn.GELU, nn.ReLU),
    *(nn.Conv1d, nn.Conv2d),
)
"""Modules that compute each token for itself; and convolutions, a part of what they stand in."""


class Unit(NamedTuple):
    """A call that mixes tokens."""

    call: ModuleCall
    cut: Sequence[ModuleCall]  # calls inside that are units of their own, and embeddings
    is_gradient: bool  # gradients show that; else only changes do
    layer: int | None  # from 0; None outside the layers


def find_units(top: ModuleCall, tokens: int, passes: Counter[str]) -> list[Unit]:
    """Return the innermost calls that mix tokens, and those whose own code does, in their order."""
    # A layer of the class of others that mixes no tokens is returned, too: it hides everything.
    known: dict[ModuleCall, tuple[list[ModuleCall], bool]] = {}
    _search(top, tokens, passes, known)
    entries = {_entry(call.name) for call in known} - {""}
    layers = [call for call in top.descendants() if call.name and call.name == _entry(call.name)]
    kinds = {_kind(call) for call in layers if call.name in entries}
    for call in layers:
        if call.name not in entries and _kind(call) in kinds:
            known[call] = [], True
    found = [call for call in (top, *top.descendants()) if call in known]
    has_lists = any(_entry(call.name) for call in found)
    numbers: dict[tuple[str, int], int] = {}
    calls, units = Counter[str](), []
    for call in found:
        entry = _entry(call.name) if has_lists else call.name
        layer = None
        if entry or not has_lists:  # a module that runs again is another layer
            layer = numbers.setdefault((entry, calls[call.name]), len(numbers))
        calls[call.name] += 1
        units.append(Unit(call, *known[call], layer))
    return units


def _kind(call: ModuleCall) -> tuple[str, type]:
    return call.name.rpartition(".")[0], type(call.module)


def _search(
    call: ModuleCall,
    tokens: int,
    passes: Counter[str],
    known: dict[ModuleCall, tuple[list[ModuleCall], bool]],
) -> list[ModuleCall]:
    """Note calls that mix tokens, with the calls to cut inside; return the outermost of them."""
    inner = [unit for each in call.inside for unit in _search(each, tokens, passes, known)]
    if isinstance(call.module, _PASSED_BY):
        return inner
    cut = [*_embeddings(call, tokens), *inner]
    # Gradients at random inputs, where nothing saturates. Changes see what has no gradient, too: a
    # kernel without one, or which tokens are the largest.
    for draw, wanted in ((1, True), (0, False)):
        reach = ModuleReach(call, tokens, passes, cut, draw, is_gradient=wanted)
        if reach.is_gradient == wanted and reach.mixes():
            known[call] = cut, wanted
            return [call]
    return inner


def _embeddings(call: ModuleCall, tokens: int) -> list[ModuleCall]:
    """Return the embeddings inside a call that gets ids, not numbers."""
    if find_numbers(call.inputs, tokens):
        return []
    return [each for each in call.descendants() if isinstance(each.module, nn.Embedding)]


def _entry(name: str) -> str:
    """Return the entry of a list that a module is part of, as ``model.layers.3``, or nothing."""
    parts = name.split(".")
    at = next((n for n, part in enumerate(parts) if part.isdecimal()), -1)
    return ".".join(parts[: at + 1])
