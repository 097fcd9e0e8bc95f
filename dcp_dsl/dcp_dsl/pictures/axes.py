"""Find which tokens are of which kind: the coloured stripes along both axes of a picture."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from dcp_dsl.core.layout import bind_layout
from dcp_dsl.core.mask import Mask
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration.reads import layout_columns
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.walk import walk_parts


@dataclass(frozen=True, slots=True)
class Stripe:
    """An instance of a segment: the tokens ``[start, end)`` are of this kind.

    Attributes:
        kind: name of the segment.
        start, end: tokens.
        number: counts the instances of the kind from 0, so that neighbours can be told apart.
    """

    kind: str
    start: int
    end: int
    number: int


def find_stripes(mask: Mask, sample: Sample) -> tuple[Stripe, ...]:
    """Return the parts of the first layout that the mask reads, in the order of the tokens.

    Empty if it reads none. Parts without tokens are left out.

    Raises:
        DatasetError: if the layout does not fit the sample.
    """
    for segment in mask.segments:
        layout = segment.source
        if isinstance(layout, ast.Layout) and sample.columns.keys() >= set(layout_columns(layout)):
            return _lay_out(segment, layout, sample)
    return ()


def _lay_out(segment: ast.Segment, layout: ast.Layout, sample: Sample) -> tuple[Stripe, ...]:
    instances, _ = bind_layout(segment, layout, sample.columns, sample.length)
    leaves = [p.part for p in walk_parts(layout.parts) if isinstance(p.part, ast.Leaf)]
    names = dict.fromkeys(leaf.name.text for leaf in leaves if leaf.name is not None)
    found = []
    for name in names or [segment.name.text]:
        spans = zip(instances[name].start.tolist(), instances[name].end.tolist(), strict=True)
        found += [Stripe(name, a, b, i) for i, (a, b) in enumerate(spans) if b > a]
    return tuple(sorted(found, key=lambda stripe: stripe.start))


def condense(stripes: Sequence[Stripe], num_tokens: int, limit: int) -> tuple[Stripe, ...]:
    """Return at most `limit` stripes: where there are more, each shows the kind in its middle.

    >>> many = [Stripe("ab"[i % 2], i, i + 1, 0) for i in range(6)]
    >>> [(s.kind, s.start, s.end) for s in condense(many, 6, 2)]
    [('b', 0, 3), ('a', 3, 6)]
    """
    if len(stripes) <= limit:
        return tuple(stripes)
    ends = [stripe.end for stripe in stripes]
    bins: list[Stripe] = []
    for index in range(limit):
        start, end = index * num_tokens // limit, (index + 1) * num_tokens // limit
        at = bisect_right(ends, (start + end) // 2)
        if at == len(stripes) or stripes[at].start > (start + end) // 2 or start == end:
            continue
        bins.append(Stripe(stripes[at].kind, start, end, stripes[at].number))
    return tuple(bins)
