"""Print the Pareto front of a batch: a table, and a picture of time against bytes."""

from collections.abc import Sequence
from itertools import chain, repeat
from string import ascii_letters

from rich.table import Table
from rich.text import Text

from dcp_planner.commands.tables import console_of_tables, size_text, time_text
from dcp_planner.search.front import FrontPoint

WIDTH, HEIGHT = 56, 10


def show_front(front: Sequence[FrontPoint]) -> None:
    """Print a line for each point and where it lies, fastest first."""
    console = console_of_tables()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "predicted", "compute", "tokens", "between nodes", "backward", "memory"):
        table.add_column(name, justify="right")
    for letter, point in zip(_names(), front, strict=False):
        sizes = (point.forward_inter, point.backward_inter, point.memory_bytes)
        balance = (f"{value:.3f}" for value in (point.compute, point.tokens))
        table.add_row(letter, time_text(point.seconds), *balance, *map(size_text, sizes))
    console.print(table)
    for line in draw([(p.seconds, p.forward_inter + p.backward_inter) for p in front]):
        console.print(Text(line), soft_wrap=True)


def _names() -> "chain[str]":
    return chain(ascii_letters, repeat("*"))  # no point is left out, however many there are


def draw(points: Sequence[tuple[float, float]]) -> list[str]:
    r"""Draw points as letters, seconds to the right and bytes upwards.

    >>> print("\n".join(draw([(1e-3, 2e6), (2e-3, 1e6)])[:2]))
      2.0 MB |a
             |
    """
    grid = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]
    (left, right), (low, high) = ((min(side), max(side)) for side in zip(*points, strict=True))
    for letter, (x, y) in reversed(list(zip(_names(), points, strict=False))):
        column = round(WIDTH * (x - left) / max(right - left, 1e-300))
        row = round(HEIGHT * (high - y) / max(high - low, 1e-300))
        grid[row][column] = letter
    ends = {0: size_text(int(high)), HEIGHT: size_text(int(low))}
    lines = [f"{ends.get(at, ''):>8} |{''.join(row)}".rstrip() for at, row in enumerate(grid)]
    span = time_text(left).ljust(WIDTH // 2) + time_text(right).rjust(WIDTH - WIDTH // 2)
    return [*lines, " " * 9 + "+" + "-" * (WIDTH + 1), " " * 10 + span]
