"""Make up the columns of small samples, for layouts and for columns that hold flags, ids or tokens.

The columns of layouts come first, because they say how long a sample is. Parts get several tokens,
one or none, and lists may have no elements, so that every way in which a part can be empty is
tested. Each such sample then gets the columns that depend on its length.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Literal, TypeAlias, cast, get_args

from dcp_dsl.core.columns import Column
from dcp_dsl.core.frame import Frame
from dcp_dsl.core.sample import Sample
from dcp_dsl.elaboration import nodes
from dcp_dsl.elaboration.programs import Reader, column_readers, layout_columns
from dcp_dsl.errors import Budget, DatasetError
from dcp_dsl.syntax import ast
from dcp_dsl.syntax.trees import walk

_LENGTHS = ((1, 4), (0, 2), (0, 3), (0, 1))  # of one part, fewest and most tokens, by style
_MAX_COUNT = 3  # elements of a list
_COUNTS = (0, 0, 1, 2, 3)  # to choose from where lists differ in size: empty ones often
DRAWS = 6  # samples of each length: every token alike, then random ones
FEW_DRAWS = 24  # of a few tokens there are few different ones: most of them are drawn
FEW_TOKENS = 3
UNNAMED_IDS = 3  # ids 0 to 2 are enough for tokens of one, two and three segments
STEPS_TO_COUNT = 2**20
WIDE, WIDE_DRAWS = 256, 2  # samples with longer lists are few: reading them is what takes time
MAX_PLACES = 8  # numbers that are drawn for a list; the rest of it is -1, which is no number
MAX_LITERALS = 16  # numbers of the mask that values are taken from
MAX_LITERAL = 2**20  # an id or a threshold; larger numbers say nothing about values
ColumnUse: TypeAlias = Literal["spans", "positions", "flags", "ids", "token", "row"]
# The strictest use comes first: a mask may read one column in several ways, and its values must
# suit them all.
_ORDER: tuple[ColumnUse, ...] = get_args(ColumnUse)


@dataclass(slots=True)
class _Style:
    """The way in which columns are drawn.

    `count` is how many elements every list has, None for each its own; `at` the tokens of the parts
    drawn so far, None behind a part whose length is no column.
    """

    rng: Random
    shortest: int
    longest: int
    count: int | None
    at: int | None = 0

    def length(self) -> int:
        return self.rng.randint(self.shortest, self.longest)

    def go_on(self, length: object) -> None:
        """Count the tokens of a part."""
        self.at = self.at + length if self.at is not None and isinstance(length, int) else None

    def fork(self, begin: int | None, at: int | None) -> int:
        """Draw a token in ``[begin, at)``, or -1."""
        if begin is None or at is None or begin == at:
            return -1
        return self.rng.choice((-1, self.rng.randrange(begin, at), self.rng.randrange(begin, at)))

    def size(self) -> int:
        return self.rng.choice(_COUNTS) if self.count is None else self.count


def draw_columns(
    layouts: Iterable[ast.Layout], index: int, rng: Random, reach: int = 0
) -> dict[str, Column]:
    """Draw a value for every column of some layouts.

    Lists of one repeated group have equal sizes. Layouts that share columns fit each other best
    where all lists have one size, which is so for two of four indices; 12 indices in a row have all
    lengths and sizes. `reach` is the most tokens of a part, if more than usual.
    """
    shortest, longest = _LENGTHS[index % len(_LENGTHS)]
    longest = max(longest, reach)
    # Indices 0, 1, 4, 5, 8, 9 have lists of 1, 1, 2, 2, 3, 3 elements; the others mix sizes.
    count = 1 + index // len(_LENGTHS) % _MAX_COUNT if index % len(_LENGTHS) < 2 else None
    found: dict[str, Column] = {}
    for layout in layouts:
        _draw_parts(layout.parts, _Style(rng, shortest, longest, count), found)
    return found


def _draw_parts(
    parts: tuple[ast.Leaf | ast.Group, ...], style: _Style, found: dict[str, Column]
) -> None:
    """Draw the columns of some parts; a column that another part has drawn keeps its value."""
    begin = style.at
    for part in parts:
        if isinstance(part, ast.Group):
            _draw_group(part, style, found, begin)
        elif part.length is not None and part.is_repeated:
            starts, size = [], style.size()
            own = [node.text for node in walk(part.length) if isinstance(node, ast.Name)]
            for name in own:
                found.setdefault(name, [style.length() for _ in range(size)])
            lengths = found[own[0]] if own else [_length_of(part.length, found)] * size
            for length in lengths:
                starts.append(style.at)
                style.go_on(length)
            _draw_parents(part, starts[:size], style, found, begin)
        elif part.length is not None:
            for name in layout_columns(ast.Layout((part,))):
                found.setdefault(name, style.length())
            style.go_on(_length_of(part.length, found))
        else:
            style.at = None


def _length_of(length: ast.Expr, found: Mapping[str, Column]) -> Column | None:
    """Return the tokens of a part, if it says them without arithmetic."""
    match length:
        case ast.Number(value):
            return value
        case ast.Name(name):
            return found.get(name)
    return None


def _draw_group(
    group: ast.Group, style: _Style, found: dict[str, Column], begin: int | None
) -> None:
    if not group.is_repeated:
        _draw_parts(group.parts, style, found)
        return
    # A repetition is drawn like a small sample; columns then list the values of all repetitions.
    rounds: list[dict[str, Column]] = [{} for _ in range(style.size())]
    starts = []
    for each in rounds:
        starts.append(style.at)
        _draw_parts(group.parts, style, each)
    for name in layout_columns(group):
        found.setdefault(name, [each[name] for each in rounds])
    _draw_parents(group, starts, style, found, begin)


def _draw_parents(
    part: ast.Leaf | ast.Group,
    starts: Sequence[int | None],
    style: _Style,
    found: dict[str, Column],
    begin: int | None,
) -> None:
    """Draw what each branch goes on from: an earlier one, or a token since `begin`; or -1."""
    if part.parents is None:
        return
    parents = [
        style.fork(begin, at) if part.is_forked else style.rng.randint(-1, index - 1)
        for index, at in enumerate(starts)
    ]
    found.setdefault(part.parents.text, parents)


@dataclass(frozen=True, slots=True)
class ColumnContents:
    """The contents of a column, as far as the text says them.

    `most` is the number of different ids, `size` that of the numbers in each list of a column of
    lists; `segment` has a value for each instance, None for tokens.
    """

    source: ColumnUse
    most: int = 0
    size: int | None = None
    segment: nodes.Segment | None = None

    @property
    def is_open(self) -> bool:
        """True if the text allows any integer, so that only a sample shows sensible ones."""
        return self.source in ("token", "row")

    @property
    def is_per_token(self) -> bool:
        """True if the column has a value per token."""
        return self.source not in ("spans", "row") and self.segment is None


def column_kinds(core: nodes.Mask) -> dict[str, ColumnContents]:
    """Describe the columns that a mask reads, except those of layouts (see `draw_columns`)."""
    found: dict[str, ColumnContents] = {}
    lengths: set[str] = set()
    for column, reader in column_readers(core):
        if isinstance(reader, ast.Layout):
            lengths.add(column)
            continue
        kind = _kind(reader)
        if column not in found or _rank(kind) < _rank(found[column]):
            found[column] = kind
    return {column: kind for column, kind in found.items() if column not in lengths}


def _kind(reader: Reader) -> ColumnContents:
    match reader:
        case ast.Columns(kind=kind, names=names):
            source = cast("ColumnUse", kind.text)  # checked: `ids`, `spans`, `flags`, `positions`
            return ColumnContents(source, (len(names) or UNNAMED_IDS) if source == "ids" else 0)
        case nodes.TokenColumn(size=size, segment=segment):
            return ColumnContents("token", 0, size, segment)
    return ColumnContents("row")


def _rank(kind: ColumnContents) -> tuple[int, int]:
    return _ORDER.index(kind.source), kind.most


def complete_samples(
    bases: Iterable[Sample], kinds: Mapping[str, ColumnContents], core: nodes.Mask
) -> Iterator[Sample]:
    """Yield each sample several times with the columns that it lacks; every call yields the same.

    Token columns also get the numbers that `core` compares with.
    """
    if not kinds:
        yield from bases
        return
    literals = _literals(core)

    # Segments last, those that others are made of first: other columns may decide how many
    # instances a segment has.
    def order(name: str) -> tuple[int, str]:
        segment = kinds[name].segment
        return 0 if segment is None else len(list(nodes.walk(segment))), name

    names = sorted(kinds, key=order)
    rng = Random(0)  # the same samples every time
    is_wide = any((kind.size or 0) > WIDE for kind in kinds.values())
    for base in bases:
        draws = FEW_DRAWS if base.length <= FEW_TOKENS else DRAWS
        for index in range(WIDE_DRAWS if is_wide else draws):
            columns = dict(base.columns)
            for name in names:
                kind = kinds[name]
                own = kind.segment
                count = base.length if own is None else count_values(own, columns, base.length)
                columns[name] = _draw(kind, count, literals, rng, is_uniform=index == 0)
            yield Sample(columns, base.length)


def count_values(segment: nodes.Segment, columns: Mapping[str, Column], length: int) -> int:
    """Return how many values a column of a segment has; 0 where the columns fit no layout.

    Evaluating a mask refuses samples that do not fit, so their number of values does not matter.
    """
    if not length:
        return 0
    try:
        own = Frame.of(length, columns, Budget(STEPS_TO_COUNT)).instances(segment)
    except DatasetError:
        return 0
    # Several stretches of tokens may share an id, and an id may have none: `total` counts ids.
    return len(own) if own.num_ids is None else own.num_ids


def _literals(core: nodes.Mask) -> list[int]:
    """Return the small numbers of a mask and their neighbours, where comparisons turn."""
    found: set[int] = set()
    for node in nodes.walk(core):
        if isinstance(node, nodes.Const) and 0 <= node.value <= MAX_LITERAL:
            found |= {node.value - 1, node.value, node.value + 1}
    return sorted(found)[:MAX_LITERALS]


def reach_of(core: nodes.Mask, most: int) -> int:
    """Return how long a sample is in which all numbers of a mask matter, at most `most` tokens."""
    numbers = {n.value for n in nodes.walk(core) if isinstance(n, nodes.Const)}
    return min(most, sum(number for number in numbers if 0 < number <= most) + 2)


def _draw(
    kind: ColumnContents, length: int, literals: list[int], rng: Random, *, is_uniform: bool
) -> Column:
    """Return the values of a column for a sample of this length."""
    match kind.source:
        case "flags":
            return [1] * length if is_uniform else _stretches([0, 1], length, rng)
        case "ids":
            values = list(range(-1, kind.most))
            return [0] * length if is_uniform else _stretches(values, length, rng)
        case "token" if kind.size is not None:
            # Most lists hold numbers of tiles. If the largest number of the mask is the tile size,
            # only so many tiles fit into the sample; -1 is no tile.
            values = [-1, *range((length - 1) // max([1, *literals]) + 1)]
            # Some lists are empty: a row that sees only what its list names then sees nothing.
            places = min(kind.size, MAX_PLACES)
            drawn = _stretches(values, places * length, rng)
            used = [rng.randint(0, places) for _ in range(length)]
            return [
                drawn[at * places : at * places + count] + [-1] * (kind.size - count)
                for at, count in enumerate(used)
            ]
        case "token":
            # Many columns hold positions: some of these lie before or behind the sample.
            values = [*range(-1, length + 2), *literals]
            return [length] * length if is_uniform else _stretches(values, length, rng)
        case "row":
            return rng.choice([*range(1, length + 2), *(n for n in literals if n > 0)])
    borders = [0, length] if is_uniform else _borders(length, rng)
    if kind.source == "spans":
        # Leaving spans out puts some tokens into no span.
        return [[a, b] for a, b in pairwise(borders) if is_uniform or rng.random() < 0.7]
    return [at - a for a, b in pairwise(borders) for at in range(a, b)]


def _stretches(values: list[int], length: int, rng: Random) -> Column:
    """Return a value per token; about every other token repeats the value before it."""
    drawn: list[Column] = []
    for _ in range(length):
        drawn.append(drawn[-1] if drawn and rng.random() < 0.5 else rng.choice(values))
    return drawn


def _borders(length: int, rng: Random) -> list[int]:
    """Return rising borders from 0 to the length; each place between is one with probability ½."""
    return [0, *(at for at in range(1, length) if rng.random() < 0.5), length]
