"""Small columns that fit layouts: parts of several tokens, of one, of none, lists without elements.

Claims are tested on them, so every way in which a part can be empty is among them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from dcp_dsl.checks.columns import layout_columns
from dcp_dsl.core.layout import Column
from dcp_dsl.syntax import ast

_LENGTHS = ((1, 4), (0, 2), (0, 3), (0, 1))  # of one part, fewest and most tokens, by style
_MAX_COUNT = 3  # elements of a list
_COUNTS = (0, 0, 1, 2, 3)  # to choose from where lists differ in size


@dataclass(frozen=True, slots=True)
class _Style:
    """How columns are drawn.

    Attributes:
        rng: where chance comes from.
        shortest, longest: tokens of a part.
        count: elements of every list; None for each list its own number, perhaps none.
    """

    rng: Random
    shortest: int
    longest: int
    count: int | None

    def length(self) -> int:
        return self.rng.randint(self.shortest, self.longest)

    def size(self) -> int:
        return self.rng.choice(_COUNTS) if self.count is None else self.count


def draw_columns(layouts: Iterable[ast.Layout], index: int, rng: Random) -> dict[str, Column]:
    """Draw a value for every column of some layouts.

    Lists of one repeated group have equal sizes. Layouts that share columns fit each other best
    where all lists have one size, which is so for two of four indices.

    Args:
        layouts: checked.
        index: says which lengths and sizes are drawn; 12 indices in a row have them all.
        rng: where chance comes from.
    """
    shortest, longest = _LENGTHS[index % len(_LENGTHS)]
    count = 1 + index // len(_LENGTHS) % _MAX_COUNT if index % len(_LENGTHS) < 2 else None
    found: dict[str, Column] = {}
    for layout in layouts:
        _draw_parts(layout.parts, _Style(rng, shortest, longest, count), found)
    return found


def _draw_parts(
    parts: tuple[ast.Leaf | ast.Group, ...], style: _Style, found: dict[str, Column]
) -> None:
    """Draw the columns of some parts; one that is drawn already stays."""
    for part in parts:
        if isinstance(part, ast.Group):
            _draw_group(part, style, found)
        elif part.length is not None:
            for name in layout_columns(ast.Layout((part,))):
                if part.is_repeated:
                    found.setdefault(name, [style.length() for _ in range(style.size())])
                else:
                    found.setdefault(name, style.length())


def _draw_group(group: ast.Group, style: _Style, found: dict[str, Column]) -> None:
    if not group.is_repeated:
        _draw_parts(group.parts, style, found)
        return
    rounds: list[dict[str, Column]] = [{} for _ in range(style.size())]
    for each in rounds:
        _draw_parts(group.parts, style, each)
    for name in layout_columns(group):
        found.setdefault(name, [each[name] for each in rounds])
