"""A checked mask, which is bound to samples, and a stack: the masks of a model's layers and heads.

A stack lists one cycle of layers, which repeats over the model: layer 7 of ``5 of sliding(1k),
causal`` is layer 1 of the cycle. Layers count from 0.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby

import numpy as np
from numpy.typing import NDArray

from dcp_dsl.checks.checker import check_expression
from dcp_dsl.checks.masks import write_out, write_out_segment
from dcp_dsl.checks.scope import Scope, find_definition, given_arguments, keys_of
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import KeySequence, column_readers, key_columns, laid_statements
from dcp_dsl.errors import Budget, DatasetError, DCPError, list_names
from dcp_dsl.forms.form import Form
from dcp_dsl.forms.slabs import Slabs
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.diagnostics import SpecError
from dcp_dsl.syntax.trees import unparse


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """A mask of a spec: an expression, the text its names come from, and the columns it needs.

    Attributes:
        name: the mask's name, or the expression if it has none.
        call: canonical text of the expression; ``spec.mask(mask.call)`` is the same mask.
        columns: columns that a sample must have.
        expression: syntax tree.
        scope: where the names in `expression` are looked up.
        program: the text that `expression` was read from.
        core: what the expression means, with everything it calls written out.
        keys: the sequence of the keys, where it is not that of the queries (`@keys`).

    >>> from dcp_dsl import Spec
    >>> mask = Spec.from_text("mask band(w: tokens = 4) = causal and q - k < w").mask("band(2)")
    >>> mask.call, mask.bind(Sample(length=100)).num_pairs
    ('band(w = 2)', 199)
    """

    name: str
    call: str
    columns: frozenset[str]
    expression: ast.Expr = field(repr=False)
    scope: Scope = field(repr=False)
    program: ast.Program = field(repr=False)
    core: nodes.Mask = field(repr=False)
    keys: KeySequence | None = field(repr=False, default=None)

    @property
    def segments(self) -> tuple[ast.Segment, ...]:
        """The segment statements of the queries' sequence that the mask reads."""
        keys = None if self.keys is None else self.keys.statement
        return tuple(s for s in laid_statements(self.core) if s != keys)

    @property
    def layouts(self) -> tuple[tuple[ast.Segment, ast.Layout], ...]:
        """The segments that are layouts, with the layouts."""
        return tuple((s, s.source) for s in self.segments if isinstance(s.source, ast.Layout))

    def require(self, sample: Sample) -> None:
        """Raise a `DatasetError` if a sample lacks a column of the mask."""
        missing = sorted(self.columns - sample.columns.keys())
        if missing:
            have = list_names(sorted(sample.columns), "no columns")
            raise DatasetError(
                f"mask `{self.name}` needs the column `{missing[0]}`; the sample has {have}"
            )

    def bind(self, sample: Sample) -> Slabs:
        """Return the exact mask of one sample as slabs.

        A mask of another form is converted, which costs as much as it has slabs; `compile` returns
        such masks in their own form, at any length.

        Raises:
            DatasetError: if the sample lacks a column, its layout does not fill it, or the mask
                falls into more than a million slabs.
            SpecError: for sizes out of range, and for masks too large for every form (E191).
        """
        from dcp_dsl.forms.conversion import as_slabs  # loaded on first use, as in `compile`

        return as_slabs(self.compile(sample))

    def compile(self, sample: Sample, *, may_cross: bool = False) -> Form:
        """Return the exact mask of one sample in the form that describes it shortest.

        The cost grows with the number of segments and tiles, not with the number of tokens. The
        form is named by its attribute `form`; see `Form` for what all of them can do.

        Args:
            sample: its columns, and how many tokens, or queries, it has.
            may_cross: whether the caller takes a mask whose keys are another sequence: it gets a
                `CrossForm`, with `num_kv` keys.

        Raises:
            DatasetError: if the sample lacks a column or its layout does not fill it.
            SpecError: for sizes out of range, and for masks too large for every form (E191).

        >>> from dcp_dsl import Spec
        >>> mask = Spec.from_text("mask comb = causal and (q - k) % 4 == 0").mask("comb")
        >>> mask.compile(Sample(length=100_000)).form
        'strided'
        """
        # Loaded on first use: a command that only checks a text saves some 40 ms.
        from dcp_dsl.core.binding import bind_again, bind_cross

        self.require(sample)
        # only columns that the mask reads: samples that differ in others share a kept form
        columns = {name: sample.columns[name] for name in self.columns}
        if self.keys is None:
            return bind_again(self.core, columns, sample.length)
        if not may_cross:
            raise DatasetError(
                f"mask `{self.name}` looks at keys of `{self.keys.statement.name.text}`: expected "
                f"a mask of one sequence, as plans and kernels here take it; `dcpm blocks` counts "
                f"its blocks, `dcpm export` writes it for FlexAttention"
            )
        return bind_cross(self.core, self.keys, columns, sample.length)


def build_mask(expression: ast.Expr, scope: Scope, program: ast.Program) -> Mask:
    """Check a mask expression over the names of a scope and make it a mask."""
    core, errors = check_expression(expression, scope, program)
    if errors:
        raise SpecError(errors)
    canonical = _canonical(expression, scope)
    match canonical:
        case ast.Name(text):
            name = text
        case ast.Call(ident):
            name = ident.text
        case _:
            name = unparse(canonical)
    keys = keys_of(expression, scope)
    columns = _columns(core, *_ahead_segments(expression, scope)) | key_columns(keys)
    return Mask(name, unparse(canonical), columns, expression, scope, program, core, keys)


def read_mask(expression: ast.Expr, scope: Scope, keys: KeySequence | None = None) -> Mask:
    """Make a checked expression of a text a mask.

    `keys` is the sequence of its keys where its own definition names none (`@keys`).
    """
    keys = keys_of(expression, scope) or keys
    text, core = unparse(expression), write_out(expression, scope, keys)
    columns = _columns(core) | key_columns(keys)
    return Mask(text, text, columns, expression, scope, scope.program, core, keys)


def on_keys(mask: Mask) -> Mask:
    """Return a mask whose queries are tokens of the keys' sequence as a mask of all its tokens.

    A claim that holds for every token of that sequence holds for the queries among them; see
    `may_begin_before`. Other masks are returned as they are.
    """
    if mask.keys is None or not mask.keys.alignment:
        return mask
    return replace(mask, keys=None, columns=_columns(mask.core))


def may_begin_before(mask: Mask) -> bool:
    """Return whether queries may stand before the first key, where they see nothing."""
    return mask.keys is not None and mask.keys.alignment == "bottom_right"


def _columns(*cores: nodes.Node) -> frozenset[str]:
    return frozenset(column for column, _ in column_readers(*cores))


def _ahead_segments(expression: ast.Expr, scope: Scope) -> list[nodes.Segment]:
    """Return the segments in which `@ahead(segment)` lets a called mask look ahead.

    The guard needs their columns to tell these pairs from others that look ahead, even where the
    mask itself does not read the segments.
    """
    found = find_definition(expression, scope)
    if found is None:
        return []
    ahead = [d for d in found[0].decorators if d.name.text == "ahead"]
    return [write_out_segment(s.text, found[1]) for d in ahead for s in d.arguments]


def _canonical(expression: ast.Expr, scope: Scope) -> ast.Expr:
    """Name all arguments of a call, in the order of the parameters, without the defaults.

    Calls that mean the same then have the same text: ``band(w = 2)`` for ``band(2)``.
    """
    if not isinstance(expression, ast.Call):
        return expression
    found = find_definition(expression, scope)
    if found is None:
        return expression
    given = given_arguments(found[0], expression.arguments)
    arguments = [
        ast.Argument(ast.Ident(param.name.text), given[param.name.text])
        for param in found[0].params
        if param.name.text in given and given[param.name.text] != param.default
    ]
    if not arguments:
        return ast.Name(expression.name.text)
    return ast.Call(expression.name, tuple(arguments))


MAX_STEPS = 2**40  # cost of finding documents: no limit that a sample reaches


class HeadError(DCPError):
    """A model whose KV heads do not fit the head groups of a stack."""


@dataclass(frozen=True, slots=True)
class HeadMask:
    """The mask of KV heads `first` to `last`, included; None for those that no group names."""

    mask: Mask
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class StackLayer:
    """An entry of the cycle: `count` equal layers; without heads they are linear attention.

    `documents` are those of linear layers; None for the whole sample.
    """

    count: int
    heads: tuple[HeadMask, ...]
    documents: nodes.Segment | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """The masks of a model's layers.

    Attributes:
        name: of the statement; of a single mask its name.
        layers: the cycle.

    >>> from dcp_dsl import Spec
    >>> stack = Spec.from_text("stack gemma3 = 5 of sliding(1k), causal").stack("gemma3")
    >>> stack.period, [mask.call for mask in stack.masks]
    (6, ['sliding(window = 1k)', 'causal'])
    >>> stack.layers_of(stack.masks[1], num_layers=13)
    (5, 11)
    >>> stack.heads(layer=6, kv_heads=8)[0][0]
    range(0, 8)
    """

    name: str
    layers: tuple[StackLayer, ...]

    @classmethod
    def of(cls, mask: Mask) -> "Stack":
        """Return the stack whose layers all use one mask."""
        return cls(mask.name, (StackLayer(1, (HeadMask(mask),)),))

    @property
    def period(self) -> int:
        """Layers in one cycle."""
        return sum(layer.count for layer in self.layers)

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The different masks, by their canonical call, in the order of the cycle."""
        found: dict[tuple[int, str], Mask] = {}
        for layer in self.layers:
            for head in layer.heads:
                found.setdefault(_identity(head.mask), head.mask)
        return tuple(found.values())

    @property
    def columns(self) -> frozenset[str]:
        """Columns that any of its masks needs."""
        documents = [layer.documents for layer in self.layers if layer.documents is not None]
        return _columns(*documents).union(*(mask.columns for mask in self.masks))

    def cycle(self) -> tuple[int, ...]:
        """Return for each layer of the cycle the number of its mask among `masks`; -1 for linear.

        Raises:
            HeadError: if KV heads of one layer have different masks, or some have none.

        >>> from dcp_dsl import Spec
        >>> Spec.from_text("stack local = 3 of sliding(1k), causal").stack("local").cycle()
        (0, 0, 0, 1)
        """
        number = {_identity(mask): at for at, mask in enumerate(self.masks)}
        cycle: list[int] = []
        for place, layer in enumerate(self.layers):
            used = {number[_identity(head.mask)] for head in layer.heads} or {-1}
            # a last group with a range has no `rest`, so some heads may have no mask
            if len(used) > 1 or (layer.heads and layer.heads[-1].first is not None):
                raise HeadError(
                    f"stack `{self.name}`, entry {place}: KV heads of one layer have masks of "
                    "their own; expected one mask for all heads of a layer, which is what is "
                    "planned. A stack with an entry per mask gives their plans over one ownership "
                    'of tokens; docs/training-models.md, "Heads with masks of their own", runs them'
                )
            cycle += [used.pop()] * layer.count
        return tuple(cycle)

    def layer(self, index: int) -> StackLayer:
        """Return the entry that layer `index` of a model (from 0) uses."""
        ends = list(accumulate(entry.count for entry in self.layers))
        return self.layers[bisect_right(ends, index % ends[-1])]

    def heads(self, layer: int, kv_heads: int) -> tuple[tuple[range, Mask], ...]:
        """Return the masks of a layer by ranges of KV heads, in order; together all heads.

        Args:
            layer: from 0; the cycle repeats.
            kv_heads: KV heads of the model.

        Raises:
            HeadError: if the layer is linear, a head has no mask, or a group names heads the model
                does not have.
        """
        owner: list[Mask | None] = [None] * kv_heads
        groups = self.layer(layer).heads
        if not groups:
            raise HeadError(f"stack `{self.name}`: layer {layer} is linear, it attends to nothing")
        for group in groups:
            first, last = group.first, group.last
            if first is None or last is None:  # `rest`: all heads that no group before it names
                owner = [group.mask if mask is None else mask for mask in owner]
            elif last >= kv_heads:
                raise HeadError(
                    f"stack `{self.name}`, layer {layer}: it names KV head {last}, the model has "
                    f"{kv_heads} (0..{kv_heads - 1}); change the range in `heads {{...}}`"
                )
            else:
                owner[first : last + 1] = [group.mask] * (last + 1 - first)
        if None in owner:
            raise HeadError(
                f"stack `{self.name}`, layer {layer}: KV head {owner.index(None)} of {kv_heads} "
                f"has no mask; end the group with `rest: causal`"
            )
        return tuple(_runs([mask for mask in owner if mask is not None]))

    def cu_seqlens(self, layer: int, sample: Sample) -> NDArray[np.int32]:
        """Return where the state of a linear layer begins anew, as kernels of such layers take it.

        Args:
            layer: from 0; the cycle repeats.
            sample: of n tokens, with the columns of the stack.

        Returns:
            int32 ``[S + 1]``, rising from 0 to n: the borders of the layer's documents. Tokens
            between documents are a sequence of their own.

        Raises:
            HeadError: if the layer has masks.
            DatasetError: if the sample does not fit the documents.

        >>> from dcp_dsl import Spec
        >>> text = "segment doc = [lens]*  stack s = linear per doc, causal per doc"
        >>> Spec.from_text(text).stack("s").cu_seqlens(0, Sample({"lens": [2, 3]}, 5)).tolist()
        [0, 2, 5]
        """
        from dcp_dsl.core.frame import Frame  # loaded on first use, as in `Mask.compile`

        entry = self.layer(layer)
        if entry.heads:
            raise HeadError(
                f"stack `{self.name}`: layer {layer} has a mask; expected a linear layer, whose "
                "state begins anew somewhere"
            )
        borders = np.array([0, sample.length])
        if entry.documents is not None and sample.length:
            frame = Frame.of(sample.length, sample.columns, Budget(MAX_STEPS))
            own = frame.cells_of(entry.documents)
            borders = np.concatenate([borders, own.start, own.end])
        return np.unique(borders).astype(np.int32)

    def layers_of(self, mask: Mask, num_layers: int) -> tuple[int, ...]:
        """Return the layers of a model in which any head uses a mask (one of `masks`)."""
        return tuple(
            index
            for index in range(num_layers)
            if _identity(mask) in {_identity(head.mask) for head in self.layer(index).heads}
        )


def _identity(mask: Mask) -> tuple[int, str]:
    """Return a key that equal masks of a stack share: where names are looked up, and the call."""
    return id(mask.scope), mask.call


def _runs(owner: list[Mask]) -> Iterator[tuple[range, Mask]]:
    for _, run in groupby(range(len(owner)), key=lambda head: _identity(owner[head])):
        heads = list(run)
        yield range(heads[0], heads[-1] + 1), owner[heads[0]]


def build_stack(definition: ast.StackDef, scope: Scope) -> Stack:
    """Make a checked `stack` statement a value."""
    return Stack(definition.name.text, tuple(_layer(each, scope) for each in definition.layers))


def _layer(layer: ast.Layer, scope: Scope) -> StackLayer:
    if layer.value is not None:
        return StackLayer(layer.count, (HeadMask(build_mask(layer.value, scope, scope.program)),))
    heads = [
        HeadMask(build_mask(group.value, scope, scope.program), group.first, group.last)
        for group in layer.heads
    ]
    documents = layer.documents
    segment = None if documents is None else write_out_segment(documents.text, scope)
    return StackLayer(layer.count, tuple(heads), segment)
