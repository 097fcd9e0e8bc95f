"""Split a mask by conditions on scattered tokens: the rest of the mask in each case is short.

``causal and q in asking and k in kept`` has two conditions that read one token each. If both are
scattered, no region of them is short; but where both hold the rest is `causal`, and where one fails
it is empty. The cases become labelled parts of `Parts`. A condition that query and key have equal
labels, such as `same(doc)` for ids that come back, is taken out the same way.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, product
from typing import TypeAlias

import numpy as np

from dcp_dsl.arrays import Bools, Ints, sealed
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.lowering import Lowering, NoForm
from dcp_dsl.core.predicate import Predicate
from dcp_dsl.elaboration import nodes
from dcp_dsl.forms.conversion import slabs_of
from dcp_dsl.forms.labels import MAX_TOKENS, LabelledPart
from dcp_dsl.forms.parts import Parts
from dcp_dsl.symbolic.intervals import Grid
from dcp_dsl.symbolic.region import Region
from dcp_dsl.symbolic.terms import VaryingLength

MIN_STRETCHES = 64  # changes of a condition from token to token; with fewer it has a short region
MAX_CONDITIONS = 16  # on the query, or on the key
MAX_CASES = 64  # pairs of a case of queries and a case of keys


# Which conditions hold for the tokens of a case, and which tokens these are, bool ``[T]``.
Case: TypeAlias = tuple[dict[nodes.Mask, bool], Bools]


@dataclass(frozen=True, slots=True)
class Labels:
    """A condition that holds where query and key carry equal labels, int64 ``[T]``."""

    of_q: Ints  # -1 is equal to nothing
    of_k: Ints


@dataclass(frozen=True, slots=True)
class Factors:
    """Conditions taken out of a mask.

    Attributes:
        on_q: conditions that read the query alone, and for which tokens they hold, bool ``[T]``.
        on_k: the same for the key.
        equal: the condition that compares labels; at most one.
    """

    on_q: dict[nodes.Mask, Bools]
    on_k: dict[nodes.Mask, Bools]
    equal: dict[nodes.Mask, Labels]

    @classmethod
    def of(cls, core: nodes.Mask, frame: Frame) -> "Factors":
        """Find the scattered conditions of a mask on a sample."""
        found = cls({}, {}, {})
        reader = Predicate(frame, is_symbolic=False)
        for node in _conditions(core):
            sides = {"q", "k"} if isinstance(node, nodes.Same) else _positions(node)
            if len(sides) == 1:
                grid = _line(frame.num_tokens, *sides)
                # on single pairs both verdicts are the same; the grid is one row or one column
                holds: Bools = reader.mask(node)(grid)[1].ravel()
                if np.count_nonzero(holds[1:] != holds[:-1]) >= MIN_STRETCHES:
                    (found.on_q if sides == {"q"} else found.on_k)[node] = holds
            elif len(sides) == 2 and not found.equal:
                labels = _labels(reader, node, frame)
                if labels is not None:
                    found.equal[node] = labels
        return found


def factorise(core: nodes.Mask, frame: Frame) -> Parts | None:
    """Return a mask as labelled parts; None if no condition is scattered or a rest is long."""
    if frame.num_tokens > MAX_TOKENS:
        return None
    factors = Factors.of(core, frame)
    if not any((factors.on_q, factors.on_k, factors.equal)):
        return None
    if max(len(factors.on_q), len(factors.on_k)) > MAX_CONDITIONS:
        return None
    n = frame.num_tokens
    q_cases, k_cases = _cases(factors.on_q, n), _cases(factors.on_k, n)
    if len(q_cases) * len(k_cases) > MAX_CASES:
        return None
    return _assemble(core, frame, factors, (q_cases, k_cases))


def _assemble(
    core: nodes.Mask, frame: Frame, factors: Factors, cases: tuple[list[Case], list[Case]]
) -> Parts | None:
    """Find the rest of a mask in each case, and put cases with equal rests together."""
    rest = _Rest(Lowering(frame, is_transposed=False))
    # (rest of unequal labels, rest of equal ones) -> case of queries -> cases of keys
    by_rests: dict[tuple[int, int], dict[int, list[int]]] = {}
    try:
        for (i, (q_truth, _)), (j, (k_truth, _)) in product(*map(enumerate, cases)):
            unequal, equal = (
                rest.find(core, {**q_truth, **k_truth, **dict.fromkeys(factors.equal, holds)})
                for holds in (False, True)
            )
            by_rests.setdefault((unequal, equal), {}).setdefault(i, []).append(j)
    except (NoForm, VaryingLength):
        return None
    parts: list[LabelledPart] = []
    labels = next(iter(factors.equal.values()), None)
    for (unequal, equal), which in by_rests.items():
        for rows, keys in _rectangles(which):
            of_q = _any(cases[0][i][1] for i in rows)
            of_k = _any(cases[1][j][1] for j in keys)
            both = sealed(of_q.astype(np.int64) - 1), sealed(of_k.astype(np.int64) - 1)
            parts += _part(rest.regions[unequal], both, 1)
            # Pairs of equal labels have a rest of their own; the other rest is taken away there.
            if labels is not None and equal != unequal:
                own = np.where(of_q, labels.of_q, -1), np.where(of_k, labels.of_k, -1)
                parts += _part(rest.regions[equal], own, 1)
                parts += _part(rest.regions[unequal], own, -1)
    return Parts(frame.num_tokens, tuple(parts))


def _part(region: Region, labels: tuple[Ints, Ints], sign: int) -> list[LabelledPart]:
    return [LabelledPart(slabs_of(region), *labels, sign)] if len(region.q_start) else []


def _any(flags: Iterable[Bools]) -> Bools:
    found: Bools = np.logical_or.reduce(list(flags))
    return found


def _conditions(core: nodes.Mask) -> list[nodes.Mask]:
    """Return the conditions that a mask joins by and, or and not; a `per` stays whole."""
    found: dict[nodes.Mask, None] = {}
    stack = [core]
    while stack:
        node = stack.pop()
        match node:
            case nodes.Not(item):
                stack.append(item)
            case nodes.And(items) | nodes.Or(items):
                stack.extend(items)
            case nodes.Compare() | nodes.Within() | nodes.Same():
                found[node] = None
    return list(found)


def _positions(node: nodes.Node) -> set[nodes.Side]:
    return {inner.side for inner in nodes.walk(node) if isinstance(inner, nodes.Pos)}


def _line(num_tokens: int, side: nodes.Side) -> Grid:
    """Return the pairs of every token of one side with the first of the other."""
    whole, first = (0, num_tokens), (0, 1)
    return Grid.of_pairs(whole, first) if side == "q" else Grid.of_pairs(first, whole)


def _labels(reader: Predicate, node: nodes.Mask, frame: Frame) -> Labels | None:
    """Return the labels that a condition compares, if they are scattered."""
    match node:
        case nodes.Same(segment):
            own = frame.instances(segment).filled()
            if not own.is_split:
                return None
            function = own.function(frame.num_tokens, own.labels())
            values, is_defined = function.at(np.arange(frame.num_tokens))
            label = np.where(is_defined, values, -1)
            return Labels(label, label)
        case nodes.Compare("==", left, right):
            sides = [_positions(number) for number in (left, right)]
            if sorted(map(sorted, sides)) != [["k"], ["q"]]:
                return None
            found = {}
            for number, (side,) in zip((left, right), sides, strict=True):
                grid = _line(frame.num_tokens, side)
                bound = reader.number(number)(grid)
                found[side] = [
                    np.broadcast_to(v, grid.shape).ravel() for v in (bound.low, bound.surely)
                ]
            of_q, of_k = found["q"], found["k"]
            # With few stretches on both sides the comparison itself is short, as slabs.
            if max(np.count_nonzero(np.diff(v)) for v, _ in (of_q, of_k)) < MIN_STRETCHES**2:
                return None
            # numbers of both sides get labels from one list: equal numbers, equal labels
            _, label = np.unique(np.concatenate([of_q[0], of_k[0]]), return_inverse=True)
            both = np.where(np.concatenate([of_q[1], of_k[1]]), label, -1)
            return Labels(both[: frame.num_tokens], both[frame.num_tokens :])
    return None


def _cases(held: Mapping[nodes.Mask, Bools], num_tokens: int) -> list[Case]:
    """Return every combination of conditions that occurs, with the tokens that it occurs at."""
    if not held:
        return [({}, np.ones(num_tokens, np.bool_))]
    if len(held) == 1:
        ((node, own),) = held.items()
        return [({node: holds}, own == holds) for holds in (False, True) if (own == holds).any()]
    table = np.column_stack(list(held.values()))
    # a bit for each condition: at most MAX_CONDITIONS, so bincount has 2**16 places
    codes = table @ (1 << np.arange(len(held)))
    code = np.flatnonzero(np.bincount(codes))  # cheaper than sorting them
    bits = [[bool(c >> i & 1) for i in range(len(held))] for c in code.tolist()]
    return [
        (dict(zip(held, own, strict=True)), codes == c) for c, own in zip(code, bits, strict=True)
    ]


def _rectangles(cases: Mapping[int, list[int]]) -> list[tuple[list[int], list[int]]]:
    """Cover pairs of cases by disjoint products of rows and keys: rows with equal keys together."""
    # sorted first, since groupby joins neighbours only
    order = sorted(cases, key=lambda i: cases[i])
    return [(list(rows), keys) for keys, rows in groupby(order, key=lambda i: cases[i])]


class _Rest:
    """The rest of a mask once some conditions are known, as regions; each is computed once.

    Equal rests are one node of `made`; `index` is the region of each.
    """

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering
        self.regions: list[Region] = []
        self.made: dict[object, nodes.Mask] = {}
        self.index: dict[nodes.Mask, int] = {}

    def find(self, core: nodes.Mask, truth: Mapping[nodes.Mask, bool]) -> int:
        """Return the index of the region of a mask, given whether some conditions hold."""
        left = self._given(core, truth)
        if left not in self.index:
            region = self.lowering.mask(left)
            if not isinstance(region, Region):
                raise NoForm(core.place, TypeError())
            same = [i for i, other in enumerate(self.regions) if other.is_equal(region)]
            self.index[left] = same[0] if same else len(self.regions)
            self.regions += [] if same else [region]
        return self.index[left]

    def _given(self, node: nodes.Mask, truth: Mapping[nodes.Mask, bool]) -> nodes.Mask:
        """Put the known conditions in, and leave out items that then decide nothing."""
        if node in truth:
            return self._truth(truth[node])
        match node:
            case nodes.Not(item):
                inner = self._given(item, truth)
                if isinstance(inner, nodes.Truth):
                    return self._truth(not inner.value)
                return self._once(node, (inner,))
            case nodes.And(items) | nodes.Or(items):
                decides = isinstance(node, nodes.Or)  # one that holds decides `or`
                left = [self._given(item, truth) for item in items]
                known = [item.value for item in left if isinstance(item, nodes.Truth)]
                if decides in known:
                    return self._truth(decides)
                left = [item for item in left if not isinstance(item, nodes.Truth)]
                return self._once(node, tuple(left)) if left else self._truth(not decides)
        return node

    def _truth(self, value: bool) -> nodes.Mask:
        return self.made.setdefault(value, nodes.Truth(value))

    def _once(
        self, node: nodes.Not | nodes.And | nodes.Or, items: tuple[nodes.Mask, ...]
    ) -> nodes.Mask:
        """Return the node with other items, the same one for the same items."""
        if len(items) == 1 and not isinstance(node, nodes.Not):
            return items[0]
        changed = {"item": items[0]} if isinstance(node, nodes.Not) else {"items": items}
        return self.made.setdefault((type(node), items), replace(node, **changed))
