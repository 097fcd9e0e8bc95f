"""Compare what each layer of a model really sees with what a mask says that it sees.

The model runs once. Then every module that mixes tokens is asked alone, so that the error of one
layer is not blamed on the next, nor hidden behind what many layers pass on.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor, nn
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from dcp_dsl import Mask, Picture, Sample, Stack, dense_mask
from dcp_dsl.arrays import Bools
from dcp_dsl.forms import Rows, ranges_of_tile
from dcp_runtime.errors import RunError
from dcp_runtime.probing.calls import at_rest, note_calls
from dcp_runtime.probing.reach import ModuleReach
from dcp_runtime.probing.units import Unit, find_units

Batch: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]  # Any: whatever a model takes
Written: TypeAlias = Mask | Stack | Bools | Sequence[Bools | None]

DRAWS = 8  # a pair is hidden if so many draws of random inputs, too, do not show it

MOST_TOLD = 8


@dataclass(frozen=True, slots=True, eq=False)
class LayerProbe:
    """What a module that mixes tokens sees; pairs are (query, key), bool ``[T, T]``."""

    module: str  # name and class
    layer: int | None  # from 0; None for a module outside the layers
    mask: str  # what is written for it, in words
    leaks: Bools  # seen and not written
    hides: Bools  # written and not seen
    sees: Bools  # all that is seen

    @property
    def first(self) -> tuple[int, int] | None:
        """The smallest wrong pair (query, key); ``None`` if all are right."""
        wrong = np.argwhere(self.leaks | self.hides).tolist()
        return (wrong[0][0], wrong[0][1]) if wrong else None

    @property
    def words(self) -> str:
        """What is wrong, in a sentence or two."""
        place = "outside the layers" if self.layer is None else f"layer {self.layer}"
        if self.first is None:
            return f"{place}, {self.module}, sees what is written: {self.mask}"
        query, key = self.first
        counts = [f"leaks {n:,} pairs" for n in [int(self.leaks.sum())] if n]
        counts += [f"hides {n:,} pairs" for n in [int(self.hides.sum())] if n]
        told = "sees" if self.leaks[query, key] else "does not see"
        return (
            f"{place}, {self.module}, {' and '.join(counts)}:\n"
            f"  query {query} {told} key {key}; written is {self.mask}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class ProbeReport:
    """What the layers of a model see.

    Attributes:
        layers: the modules that mix tokens, in the order in which they run.
        forward_passes, backward_passes: of single modules; the model itself ran once.
        seconds: in all.
        picture: the first mask on the row, if it was given as text.
    """

    layers: tuple[LayerProbe, ...]
    forward_passes: int
    backward_passes: int
    seconds: float
    picture: Picture | None = None

    @property
    def first_wrong(self) -> LayerProbe | None:
        """The first layer that leaks or hides."""
        return next((layer for layer in self.layers if layer.first), None)

    def text(self, columns: int = 64, **drawing: bool) -> str:
        """Write what was found, and draw the first wrong layer as `Picture.text` does."""
        wrong = [layer for layer in self.layers if layer.first]
        if not wrong:
            return f"{len(self.layers)} modules mix tokens; all see what is written"
        lines = [f"{len(self.layers)} modules mix tokens; {len(wrong)} see other keys than written"]
        lines += [layer.words for layer in wrong[:MOST_TOLD]]
        lines += [f"and {len(wrong) - MOST_TOLD} more"] * (len(wrong) > MOST_TOLD)
        for title in ("sees", "leaks", "hides"):
            pairs = getattr(wrong[0], title)
            if pairs.any():
                form = Rows(len(pairs), *ranges_of_tile(pairs))
                stripes = () if self.picture is None else self.picture.stripes
                lines += ["", Picture(title, form, stripes).text(columns, **drawing)]
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """Return the document of `dcpm probe --json`: wrong layers with their pairs."""
        return {
            "modules": len(self.layers),
            "seconds": self.seconds,
            "wrong": [
                {
                    "layer": layer.layer, "module": layer.module, "mask": layer.mask,
                    "first": layer.first, "leaks": np.argwhere(layer.leaks).tolist(),
                    "hides": np.argwhere(layer.hides).tolist(),
                }
                for layer in self.layers if layer.first
            ],
        }  # fmt: skip


class _Expected(NamedTuple):
    """Pairs that a layer must see and may see, bool ``[T, T]``."""

    words: str
    least: Bools
    most: Bools


def probe(
    model: Module, batch: Batch, mask: Written, sample: Sample | None = None, *, layers: int = 1
) -> ProbeReport:
    """Find which keys each query sees in every layer of a model, and compare with a mask.

    A key is seen if the query depends on it in any head. A token's own key is not compared: its
    query depends on the token anyway. A `linear` layer of a stack may see all that the masks of the
    stack pass on, and need not see anything.

    Args:
        model: any module of torch; weights, modes and gradients stay as they are.
        batch: one row: a tensor, a tuple of positional or a dict of named arguments.
        mask: of the layers: a `Mask` or `Stack`; or bool ``[T, T]``, or a list of these, which is a
            cycle over the layers, with ``None`` for a linear one.
        sample: columns and length of the row; the first tensor says the length otherwise.
        layers: of a model that is a single module for torch; its mask is then what so many layers
            pass on.

    Raises:
        RunError: if the model cannot be called, no module mixes tokens, or the number of tokens is
            a size of the weights, too.

    Costs one call of the model, 2 log2(T) passes of every module in it, and T backward passes of
    those that mix tokens, or T forward passes of those without gradients.

    >>> import torch
    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    >>> probe(layer, torch.randn(1, 5, 16), np.tril(np.ones((5, 5), bool))).first_wrong.first
    (0, 1)
    """
    started, passes = time.perf_counter(), Counter[str]()
    args = batch if isinstance(batch, tuple) else () if isinstance(batch, dict) else (batch,)
    named = batch if isinstance(batch, dict) else {}
    if sample is None and isinstance(mask, (Mask, Stack)):
        sizes = [t.shape[1] for t in tree_leaves(batch) if isinstance(t, Tensor) and t.ndim > 1]
        sample = Sample(length=sizes[0]) if sizes else Sample()
    cycle, picture = _cycle(mask, sample)
    tokens = len(cycle[0].most)
    _check_sizes(model, tokens)
    with at_rest(model):
        units = find_units(note_calls(model, args, named), tokens, passes)
        found = [_judge(unit, _expected(cycle, unit, layers), passes) for unit in units]
    if not found:
        raise RunError(
            f"{type(model).__name__}: no module mixes tokens: expected inputs and outputs with a "
            f"dimension of {tokens}, the tokens of the mask; give the row that the batch holds"
        )
    spent = time.perf_counter() - started
    return ProbeReport(tuple(found), passes["forward"], passes["backward"], spent, picture)


def assert_sees(
    model: Module, batch: Batch, mask: Written, sample: Sample | None = None, *, layers: int = 1
) -> None:
    """Fail a test if a layer of a model sees other keys than a mask says; arguments as `probe`.

    Raises:
        AssertionError: with the first wrong layer, its smallest wrong pair and a drawing.

    >>> import torch
    >>> attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> assert_sees(attention, (x := torch.randn(1, 5, 8), x, x), np.ones((5, 5), bool))
    """
    report = probe(model, batch, mask, sample, layers=layers)
    if report.first_wrong is not None:
        raise AssertionError(report.text())


def _cycle(mask: Written, sample: Sample | None) -> tuple[list[_Expected], Picture | None]:
    """Return what each layer of the cycle is to see, and a picture of the first mask."""
    picture: Picture | None = None
    entries: list[tuple[str, list[Bools]]] = []
    if isinstance(mask, (Mask, Stack)):
        assert sample is not None, "chosen by `probe`"
        stack = mask if isinstance(mask, Stack) else Stack.of(mask)
        for entry in stack.layers:
            masks = [head.mask for head in entry.heads]
            words = " or ".join(f"`{call}`" for call in dict.fromkeys(m.call for m in masks))
            entries += [(words, [dense_mask(m, sample) for m in masks])] * entry.count
        picture = Picture.of(stack.masks[0], sample) if stack.masks else None
    else:
        given = mask if isinstance(mask, (list, tuple)) else [mask]
        entries = [("the mask", [] if each is None else [np.array(each, bool)]) for each in given]
    dense = [each for _, group in entries for each in group]
    if not dense or {each.shape for each in dense} != {dense[0].shape[:1] * 2}:
        shapes = ", ".join(str(each.shape) for each in dense) or "linear layers alone"
        raise RunError(f"probe: expected masks of one row, [T, T], for its layers, got {shapes}")
    reach, none = _passed_on([np.any(dense, axis=0)] * len(dense[0])), np.zeros_like(dense[0])
    return [
        _Expected(words, np.any(group, axis=0), np.any(group, axis=0)) if group
        else _Expected("linear, for what the masks of the stack pass on", none, reach)
        for words, group in entries
    ], picture  # fmt: skip


def _passed_on(steps: Sequence[Bools]) -> Bools:
    """Return what layers pass on, one after another, with what each token knows already."""
    own = reach = np.eye(len(steps[0]), dtype=np.float32)
    for step in steps:
        reach = ((step + own) @ reach > 0).astype(np.float32)
    return reach > 0


def _check_sizes(model: Module, tokens: int) -> None:
    tables = {m.weight for m in model.modules() if isinstance(m, nn.Embedding)}
    for name, weight in model.named_parameters():
        if tokens in weight.shape[1 if weight in tables else 0 :]:
            raise RunError(
                f"{type(model).__name__}: the row has {tokens} tokens, and `{name}` the sizes "
                f"{list(weight.shape)}, so that tokens cannot be told from features; take a row of "
                "another length, best a prime number"
            )


def _expected(cycle: list[_Expected], unit: Unit, layers: int) -> _Expected:
    if unit.layer is None:
        own = np.eye(len(cycle[0].most), dtype=bool)
        return _Expected("nothing but its own token", own, own)
    if unit.call.name or layers == 1:
        return cycle[unit.layer % len(cycle)]
    run = [cycle[n % len(cycle)] for n in range(layers)]
    words = " and ".join(dict.fromkeys(each.words for each in run))
    least, most = _passed_on([e.least for e in run]), _passed_on([e.most for e in run])
    return _Expected(f"what {layers} layers of {words} pass on", least, most)


def _judge(unit: Unit, expected: _Expected, passes: Counter[str]) -> LayerProbe:
    words, least, most = expected
    off, tokens = ~np.eye(len(most), dtype=bool), len(most)
    sees = np.zeros_like(most)
    for draw in range(1 + DRAWS):  # zero at some inputs may be another number at others
        if draw == 0 or (least & ~sees & off).any():
            is_gradient = unit.is_gradient and draw < DRAWS
            reach = ModuleReach(unit.call, tokens, passes, unit.cut, draw, is_gradient=is_gradient)
            sees |= reach.whole() & (least if draw else True)
    leaks, hides = sees & ~most & off, least & ~sees & off
    return LayerProbe(unit.call.words, unit.layer, words, leaks, hides, sees)
