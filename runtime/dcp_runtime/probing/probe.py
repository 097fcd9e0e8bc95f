"""Compare what each layer of a model really sees with what a mask says that it sees.

The model runs once; then every module that mixes tokens is asked alone, so that an error of one
layer is not blamed on the next, nor hidden behind what many layers pass on.
"""

import inspect
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Module

from dcp_dsl import Form, Mask, Picture, Sample, Stack, dense_mask, token_paths
from dcp_dsl.arrays import Bools
from dcp_dsl.forms import Rows, ranges_of_tile
from dcp_runtime.errors import RunError
from dcp_runtime.probing.calls import Call, at_rest, find_tokens, is_values, note_calls
from dcp_runtime.probing.reach import DRAWS, Reach, contradicts, mixes, whole

Batch: TypeAlias = Tensor | tuple[Any, ...] | dict[str, Any]  # Any: whatever a model takes
Written: TypeAlias = Mask | Stack | Form | Bools

_PASSED_BY = (
    *(nn.Linear, nn.Embedding, nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.SiLU, nn.GELU, nn.ReLU),
    *(nn.Conv1d, nn.Conv2d),
)
"""Modules that compute each token for itself; and convolutions, a part of what they stand in."""


@dataclass(frozen=True, slots=True, eq=False)
class LayerProbe:
    """What one module that mixes tokens sees.

    Attributes:
        module: name and class.
        layer: from 0; ``None`` for a module outside the layers.
        mask: what is written for it.
        is_gradient: whether gradients showed it; else changes of the input.
        leaks, hides: pairs (query, key) that are seen and not written, or written and not seen:
            bool ``[T, T]``.
        sees: all pairs that are seen, bool ``[T, T]``; ``None`` if it sees what is written.
    """

    module: str
    layer: int | None
    mask: str
    is_gradient: bool
    leaks: Bools
    hides: Bools
    sees: Bools | None = None

    @property
    def is_right(self) -> bool:
        """Whether no pair leaks or is hidden."""
        return self.first is None

    @property
    def first(self) -> tuple[int, int] | None:
        """The smallest wrong pair (query, key)."""
        found = np.argwhere(self.leaks | self.hides)
        return (int(found[0, 0]), int(found[0, 1])) if len(found) else None

    @property
    def words(self) -> str:
        """A sentence or two."""
        where = "outside the layers" if self.layer is None else f"layer {self.layer}"
        place = f"{where}, {self.module}"
        if self.first is None:
            return f"{place}: sees what `{self.mask}` says"
        query, key = self.first
        leaks, hides = int(self.leaks.sum()), int(self.hides.sum())
        counts = [f"{leaks:,} pairs leak"] * bool(leaks) + [f"{hides:,} are hidden"] * bool(hides)
        told = "sees key {}, which `{}` hides" if self.leaks[query, key] else (
            "does not see key {}, which `{}` shows"
        )  # fmt: skip
        kind = " and ".join(["leaks"] * bool(leaks) + ["hides"] * bool(hides))
        said = told.format(key, self.mask)
        return f"{place}: {kind}. Query {query} {said}; {' and '.join(counts)}"


@dataclass(frozen=True, slots=True, eq=False)
class ProbeReport:
    """What all layers of a model see.

    Attributes:
        layers: the modules that mix tokens, in the order in which they run.
        tokens: length of the row.
        model_passes: calls of the whole model.
        forward_passes, backward_passes: of single modules; all of a model together cost about one
            of the model.
        seconds: in all.
    """

    layers: tuple[LayerProbe, ...]
    tokens: int
    model_passes: int
    forward_passes: int
    backward_passes: int
    seconds: float

    @property
    def first_wrong(self) -> LayerProbe | None:
        """The first layer that leaks or hides."""
        return next((layer for layer in self.layers if not layer.is_right), None)

    def text(self, picture: Picture | None = None, columns: int = 64, **drawn: bool) -> str:
        """Say what was found, and draw what the first wrong layer sees.

        Args:
            picture: of the mask, whose kinds of tokens stand beside the drawing.
            columns: widest drawing, in characters.
            drawn: as `Picture.text` takes it.
        """
        wrong = [layer for layer in self.layers if not layer.is_right]
        asked = f"{len(self.layers)} modules that mix tokens, on a row of {self.tokens} tokens"
        if not wrong:
            return f"{asked}: all see what is written"
        lines = [f"{asked}: {len(wrong)} differ from what is written", wrong[0].words]
        lines += [f"also {layer.words}" for layer in wrong[1:MOST_TOLD]]
        lines += [f"and {len(wrong) - MOST_TOLD} more"] * (len(wrong) > MOST_TOLD)
        first = wrong[0]
        for title, pairs in (("seen", first.sees), ("leaks", first.leaks), ("hidden", first.hides)):
            if pairs is not None and pairs.any():
                stripes = () if picture is None else (picture.stripes, picture.key_stripes)
                lines += ["", Picture(title, _form(pairs), *stripes).text(columns, **drawn)]
        return "\n".join(lines)


MOST_TOLD = 8


def _form(pairs: Bools) -> Form:
    return Rows(len(pairs), *ranges_of_tile(pairs))


class _Expected(NamedTuple):
    name: str
    least: Bools
    most: Bools


def probe(
    model: Module,
    batch: Batch,
    mask: Written | Sequence[Written | None],
    sample: Sample | None = None,
    *,
    layers: int = 1,
) -> ProbeReport:
    """Find which keys each query really sees in every layer of a model, and compare with a mask.

    A key is seen if any head of a layer lets the query depend on it. A token's own key is not
    compared, since its query depends on the token anyway. A layer of the stack that is `linear` is
    compared with all that the stack's masks can pass on, and must see none of it.

    Args:
        model: any module of torch; weights, modes and gradients are left as they are.
        batch: one row: a tensor, a tuple of positional or a dict of named arguments.
        mask: of all layers, or a stack: a `Mask` or `Stack` with `sample`, a mask on the row as a
            `Form` or bool ``[T, T]``, or a list of these, a cycle over the layers, ``None`` for a
            linear one.
        sample: columns and length of the row. Without it the first tensor says the length.
        layers: how many layers run inside a model that is one module for torch; their masks then
            count as one, with what they pass on.

    Raises:
        RunError: if the model cannot be called, no module mixes tokens, or the number of tokens is
            a size of the weights, too.

    One call of the model; for each module that mixes tokens at most T backward passes of it, and T
    more if it is wrong.

    >>> layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    >>> report = probe(layer, torch.randn(1, 5, 16), np.tril(np.ones((5, 5), bool)))
    >>> report.first_wrong.first, int(report.first_wrong.leaks.sum())
    ((0, 1), 10)
    """
    started = time.perf_counter()
    args = batch if isinstance(batch, tuple) else () if isinstance(batch, dict) else (batch,)
    named = batch if isinstance(batch, dict) else {}
    written = _written(mask, sample, (args, named))
    tokens = len(written[0].most)
    _check_sizes(model, tokens)
    passes = Counter[str]()
    with at_rest(model):
        top = note_calls(model, args, named)
        _mark(top, tokens, passes)
        units = _units(top, tokens, passes)
        if not units:
            raise RunError(
                f"{type(model).__name__}: no module mixes tokens in a row of {tokens}: expected "
                f"inputs and outputs with a dimension of {tokens}, of the model or of modules in "
                "it; give the mask of the row that the batch holds"
            )
        found = [
            _judge(call, cut, layer, _expected(written, call, layer, layers), passes)
            for call, cut, layer in units
        ]
    seconds = time.perf_counter() - started
    return ProbeReport(
        tuple(found), tokens, 1, passes["forward"], passes["backward"], seconds
    )  # fmt: skip


def assert_sees(
    model: Module,
    batch: Batch,
    mask: Written | Sequence[Written | None],
    sample: Sample | None = None,
    *,
    layers: int = 1,
) -> None:
    """Fail a test, with a drawing, if a layer of a model sees other keys than a mask says.

    Takes what `probe` takes.

    Raises:
        AssertionError: if a layer leaks or hides.

    >>> attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    >>> assert_sees(attention, (x := torch.randn(1, 5, 8), x, x), np.ones((5, 5), bool))
    """
    report = probe(model, batch, mask, sample, layers=layers)
    if report.first_wrong is not None:
        raise AssertionError(report.text())


def _written(
    mask: Written | Sequence[Written | None], sample: Sample | None, inputs: object
) -> list[_Expected]:
    """Return what each layer of the cycle is to see."""
    if isinstance(mask, (Mask, Stack)):
        chosen = sample or Sample(length=_length(inputs))
        stack = mask if isinstance(mask, Stack) else Stack.of(mask)
        entries = [
            [head.mask for head in entry.heads] for entry in stack.layers for _ in range(entry.count)
        ]
        named = [
            (" or ".join(dict.fromkeys(m.call for m in masks)), [dense_mask(m, chosen) for m in masks])
            for masks in entries
        ]
    else:
        cycle = mask if isinstance(mask, (list, tuple)) else [mask]
        named = [("the mask", [] if each is None else [_dense(each, sample)]) for each in cycle]
    dense = [matrix for _, group in named for matrix in group]
    if not dense or any(m.shape != dense[0].shape or m.shape[0] != m.shape[1] for m in dense):
        shapes = sorted({str(list(m.shape)) for m in dense}) or ["only linear layers"]
        raise RunError(
            f"probe: expected masks of one row, [T, T], got {', '.join(shapes)}; write what the "
            "layers may see, keys of another sequence left out"
        )
    reach = _closure(np.any(dense, axis=0))
    none = np.zeros_like(reach)
    return [
        _Expected(name, np.any(group, axis=0), np.any(group, axis=0)) if group
        else _Expected("linear", none, reach)
        for name, group in named
    ]  # fmt: skip


def _dense(mask: Written, sample: Sample | None) -> Bools:
    if isinstance(mask, Mask):
        if sample is None:
            raise RunError(f"probe: mask `{mask.call}` needs the row: give sample=")
        return dense_mask(mask, sample)
    if isinstance(mask, (np.ndarray, Tensor)):
        return np.asarray(mask, bool)
    assert not isinstance(mask, Stack), "a list holds masks"
    return mask.tile(0, mask.num_tokens, 0, mask.num_tokens)


def _closure(step: Bools) -> Bools:
    """Return what any number of layers can pass on."""
    reach = step | np.eye(len(step), dtype=bool)
    for _ in range(len(step).bit_length()):
        reach = (reach.astype(np.float32) @ reach) > 0
    return reach


def _length(inputs: object) -> int:
    from torch.utils._pytree import tree_leaves

    first = next((v for v in tree_leaves(inputs) if isinstance(v, Tensor) and v.ndim > 1), None)
    if first is None:
        raise RunError("probe: nothing says how long the row is: give sample=")
    return int(first.shape[1])


def _check_sizes(model: Module, tokens: int) -> None:
    for name, weight in model.named_parameters():
        of_table = name.rpartition(".")[0]
        is_table = of_table and isinstance(model.get_submodule(of_table), nn.Embedding)
        if tokens in weight.shape[1 if is_table else 0 :]:
            raise RunError(
                f"{type(model).__name__}: the row has {tokens} tokens, and `{name}` the sizes "
                f"{list(weight.shape)}, so that tokens cannot be told from features; take a row of "
                "another length, best of a prime number of tokens"
            )


def _mark(call: Call, tokens: int, passes: Counter[str]) -> None:
    """Find the innermost calls that mix tokens; all calls around them mix, too."""
    for inside in call.inside:
        _mark(inside, tokens, passes)
    if any(inside.mixes for inside in call.inside):
        call.mixes = True
    elif not isinstance(call.module, _PASSED_BY):
        call.mixes = _mixes(call, (_sources(call, tokens)), tokens, passes)


def _sources(call: Call, tokens: int) -> list[Module]:
    """Return modules that make numbers of ids, where the call itself gets no numbers."""
    from torch.utils._pytree import tree_leaves

    def has_values(inputs: Any) -> bool:
        return any(is_values(value, tokens) for value in tree_leaves(inputs))

    if has_values(call.inputs):
        return []
    return [inside.module for inside in call.descendants() if isinstance(
        inside.module, nn.Embedding)]  # fmt: skip


def _mixes(call: Call, cut: Sequence[Module], tokens: int, passes: Counter[str]) -> bool:
    for may_differentiate in (True, False):  # a choice of the largest, say, has no gradient
        reach = Reach(call, tokens, cut, may_differentiate=may_differentiate, draws=1)
        found = mixes(reach, tokens)
        _count(reach, passes)
        if found or not reach.is_gradient:
            return found
    return False


def _count(reach: Reach, passes: Counter[str]) -> None:
    passes["forward"] += reach.passes[0]
    passes["backward"] += reach.passes[1]


def _units(
    top: Call, tokens: int, passes: Counter[str]
) -> list[tuple[Call, list[Module], int | None]]:
    """Return the calls to judge, what is cut inside them, and their layers."""
    found: list[tuple[Call, list[Module]]] = []
    for call in (top, *top.descendants()):
        if not call.mixes:
            continue
        inner = [c for c in call.descendants() if c.mixes and not any(i.mixes for i in c.inside)]
        cut = list(dict.fromkeys([*_sources(call, tokens), *(each.module for each in inner)]))
        if not inner or _mixes(call, cut, tokens, passes):
            found.append((call, cut))
    numbers: dict[tuple[str, int], int] = {}
    seen, placed = Counter[str](), []
    has_lists = any(_list_entry(call.name) for call, _ in found)
    for call, cut in found:
        entry = _list_entry(call.name) if has_lists else call.name
        layer = None
        if entry or not has_lists:
            key = entry, seen[call.name]  # a module that runs again is another layer
            layer = numbers.setdefault(key, len(numbers))
        seen[call.name] += 1
        placed.append((call, cut, layer))
    return placed


def _list_entry(name: str) -> str:
    """Return the name of the layer that a module is part of, as in ``model.layers.3``."""
    parts = name.split(".")
    at = next((n for n, part in enumerate(parts) if part.isdecimal()), None)
    return "" if at is None else ".".join(parts[: at + 1])


def _expected(
    written: list[_Expected], call: Call, layer: int | None, layers: int
) -> _Expected:
    own = np.eye(len(written[0].most), dtype=bool)
    if layer is None:
        return _Expected("no mask", np.zeros_like(own), own)
    if call.name:
        return written[layer % len(written)]
    if layers == 1:
        return written[0]
    chosen = [written[n % len(written)] for n in range(layers)]

    def passed_on(steps: list[Bools]) -> Bools:
        *_, last = accumulate(steps, lambda a, b: ((b | own).astype(np.float32) @ (a | own)) > 0)
        return last

    name = f"{layers} layers of {' and '.join(dict.fromkeys(each.name for each in chosen))}"
    return _Expected(
        name, passed_on([each.least for each in chosen]), passed_on([each.most for each in chosen])
    )


def _judge(
    call: Call, cut: list[Module], layer: int | None, expected: _Expected, passes: Counter[str]
) -> LayerProbe:
    tokens = len(expected.most)
    reach = Reach(call, tokens, cut)
    if reach.is_gradient and not mixes(reach, tokens):  # changes have shown that it mixes
        reach = Reach(call, tokens, cut, may_differentiate=False)
    least, most = expected.least, expected.most
    if not reach.is_gradient:
        least, most = least.T, most.T
    own, sees = np.eye(tokens, dtype=bool), None
    leaks = hides = np.zeros_like(own)
    if contradicts(reach.touched, least, most):
        sees = _seen(reach, tokens)
        for draw in range(1, DRAWS + 1):  # zero here, perhaps not with other values
            if not (expected.least & ~sees & ~own).any():
                break
            other = Reach(call, tokens, cut, draw, may_differentiate=draw < DRAWS)
            sees = sees | (_seen(other, tokens) & expected.least)
            _count(other, passes)
        leaks, hides = sees & ~expected.most & ~own, expected.least & ~sees & ~own
    _count(reach, passes)
    return LayerProbe(call.words, layer, expected.name, reach.is_gradient, leaks, hides, sees)


def _seen(reach: Reach, tokens: int) -> Bools:
    found = whole(reach.touched, tokens)
    return found if reach.is_gradient else found.T


def default_batch(model: Module, mask: Mask | Stack, sample: Sample) -> dict[str, Any]:
    """Return random token ids, and positions if the model takes them.

    Positions are those of the branches of the mask, else they begin anew with every stretch of
    tokens that sees no other one.
    """
    masks = mask.masks if isinstance(mask, Stack) else (mask,)
    names = inspect.signature(model.forward).parameters
    table = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    if "input_ids" not in names or table is None:
        raise RunError(
            f"{type(model).__name__}: expected a model that takes input_ids and has an embedding, "
            f"or a function batch(row) in the file that returns its arguments; forward takes "
            f"{', '.join(names)}"
        )
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(table.num_embeddings, (1, sample.length), generator=draw)
    found: dict[str, Any] = {"input_ids": ids}
    if "position_ids" in names:
        paths = next(filter(None, (token_paths(m, sample) for m in masks)), None)
        at = paths.position if paths is not None else _positions(masks, sample)
        found["position_ids"] = torch.as_tensor(np.array(at))[None]
    if "use_cache" in names:
        found["use_cache"] = False
    device = table.weight.device
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in found.items()}


def _positions(masks: Sequence[Mask], sample: Sample) -> np.ndarray[Any, Any]:
    seen = np.any([dense_mask(mask, sample) for mask in masks], axis=0)
    ties = seen | seen.T
    starts = [t for t in range(len(seen)) if not ties[t:, :t].any()]
    return np.arange(len(seen)) - np.repeat(starts, np.diff([*starts, len(seen)]))
