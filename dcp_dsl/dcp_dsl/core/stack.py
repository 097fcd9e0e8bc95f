"""A `stack` statement as a value: the mask of each layer and each KV head of a model.

The layers of a stack repeat: layer 7 of ``5 of sliding(1k), causal`` is layer 1 of the cycle.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dcp_dsl.checks.scope import Scope
from dcp_dsl.core.mask import Mask, build_mask
from dcp_dsl.errors import DCPError
from dcp_dsl.syntax import ast


class HeadError(DCPError):
    """A model whose KV heads do not fit the head groups of a stack."""


@dataclass(frozen=True, slots=True)
class HeadMask:
    """The mask of some KV heads of a layer.

    Attributes:
        mask: what they use.
        first, last: KV heads, both included; both None for all heads that no other group names.
    """

    mask: Mask
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class StackLayer:
    """An entry of the cycle: `count` layers that are alike; without heads they are linear."""

    count: int
    heads: tuple[HeadMask, ...]


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
                found.setdefault((id(head.mask.scope), head.mask.call), head.mask)
        return tuple(found.values())

    @property
    def columns(self) -> frozenset[str]:
        """Columns that any of its masks needs."""
        return frozenset().union(*(mask.columns for mask in self.masks))

    def cycle(self) -> tuple[int, ...]:
        """Return for each layer of the cycle the number of its mask among `masks`; -1 for linear.

        Raises:
            HeadError: if KV heads of one layer have different masks, or some have none.

        >>> from dcp_dsl import Spec
        >>> Spec.from_text("stack local = 3 of sliding(1k), causal").stack("local").cycle()
        (0, 0, 0, 1)
        """
        number = {(id(mask.scope), mask.call): at for at, mask in enumerate(self.masks)}
        cycle: list[int] = []
        for place, layer in enumerate(self.layers):
            used = {number[id(head.mask.scope), head.mask.call] for head in layer.heads} or {-1}
            if len(used) > 1 or (layer.heads and layer.heads[-1].first is not None):
                raise HeadError(
                    f"stack `{self.name}`, entry {place}: KV heads of one layer have masks of "
                    "their own; expected one mask for all heads of a layer, which is what is "
                    "planned. A stack with an entry per mask gives their plans over one ownership "
                    'of tokens; docs/training.md, "Heads with masks of their own", runs them'
                )
            cycle += [used.pop()] * layer.count
        return tuple(cycle)

    def layer(self, index: int) -> StackLayer:
        """Return the entry that layer `index` of a model (from 0) uses."""
        place = index % self.period
        for entry in self.layers:
            if place < entry.count:
                return entry
            place -= entry.count
        raise AssertionError("the place is smaller than the period")

    def heads(self, layer: int, kv_heads: int) -> tuple[tuple[range, Mask], ...]:
        """Return the masks of a layer by ranges of KV heads, in order; together they are all heads.

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
            if first is None or last is None:
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

    def layers_of(self, mask: Mask, num_layers: int) -> tuple[int, ...]:
        """Return the layers of a model in which any head uses a mask (one of `masks`)."""
        return tuple(
            index
            for index in range(num_layers)
            if any(_is_same(head.mask, mask) for head in self.layer(index).heads)
        )


def _is_same(a: Mask, b: Mask) -> bool:
    return a.call == b.call and a.scope is b.scope


def _runs(owner: list[Mask]) -> Iterator[tuple[range, Mask]]:
    begin = 0
    for head in range(1, len(owner) + 1):
        if head == len(owner) or not _is_same(owner[head], owner[begin]):
            yield range(begin, head), owner[begin]
            begin = head


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
    return StackLayer(layer.count, tuple(heads))
