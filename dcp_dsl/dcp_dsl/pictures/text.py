"""Draw pictures out of characters."""

from collections.abc import Sequence

from dcp_dsl.pictures.axes import Stripe, condense, kinds
from dcp_dsl.pictures.drawing import Coverage, Drawing, measure_coverage

_HALVES = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}
_SHADES = " ░▒▓█"
_ASCII = str.maketrans("▀▄█░▒▓┌┐└┘│─", "',#-+*++++|-")
_ANSI = (34, 33, 32, 35, 36, 31)  # blue, yellow, green, magenta, cyan, red


def draw_text(drawing: Drawing, columns: int, *, is_ascii: bool, has_colour: bool) -> str:
    """Draw a mask with characters; see `Picture.text`."""
    size = drawing.bound.num_tokens
    lines = [f"{drawing.title}: {drawing.summary}"]
    if size == 0:
        return lines[0]
    cell = -(-size // max(1, columns))
    # A character is twice as high as it is wide, so either way the matrix is square.
    coverage = measure_coverage(drawing.bound, cell if cell == 1 else 2 * cell, cell)
    rows = _halves(coverage) if cell == 1 else _shades(coverage)
    letters = _letters(kinds(drawing.stripes))
    colours = {kind: _ANSI[i % len(_ANSI)] for i, kind in enumerate(letters)} if has_colour else {}
    axis = _axis(drawing.stripes, size, cell, letters)
    frame = _Frame(is_ascii, colours)
    lines += frame.around(rows, axis, len(coverage.part[0]))
    if letters:
        lines.append(frame.legend(letters))
    if cell > 1:
        lines.append(
            frame.shown(f"one character: {2 * cell} queries by {cell} keys; {_SHADES[1:]}")
        )
    return "\n".join(lines)


def _halves(coverage: Coverage) -> list[str]:
    part = (coverage.part > 0).astype(int).tolist()
    blank = [0] * len(part[0])
    part += [blank] * (len(part) % 2)
    return [
        "".join(_HALVES[pair] for pair in zip(upper, lower, strict=True))
        for upper, lower in zip(part[::2], part[1::2], strict=True)
    ]


def _shades(coverage: Coverage) -> list[str]:
    """Map nothing to a blank, everything to a full block, and thirds in between."""

    def shade(part: float) -> str:
        return _SHADES[0 if part <= 0 else 4 if part >= 1 else 1 + min(2, int(3 * part))]

    return ["".join(map(shade, row)) for row in coverage.part.tolist()]


def _letters(names: Sequence[str]) -> dict[str, str]:
    """Return every kind a letter of its own, of its name if one is free.

    >>> _letters(["question", "answer", "again"])
    {'question': 'q', 'answer': 'a', 'again': 'g'}
    """
    given: dict[str, str] = {}
    for name in names:
        wanted = [c for c in name.lower() + "abcdefghijklmnopqrstuvwxyz" if c.isalpha()]
        free = [c for c in wanted if c not in given.values()]
        given[name] = free[0] if free else "?"
    return given


def _axis(
    stripes: Sequence[Stripe], size: int, cell: int, letters: dict[str, str]
) -> list[tuple[str, str]]:
    """Return (letter, kind) of each column; every second instance of a kind has a capital."""
    columns = -(-size // cell)
    axis = [(" ", "")] * columns
    for stripe in condense(stripes, size, columns):
        letter = letters[stripe.kind]
        letter = letter.upper() if stripe.number % 2 else letter
        for column in range(stripe.start // cell, -(-stripe.end // cell)):
            if cell == 1 or stripe.start <= column * cell + cell // 2:
                axis[column] = letter, stripe.kind
    return axis


class _Frame:
    """Puts a border, letters and colours around the rows."""

    def __init__(self, is_ascii: bool, colours: dict[str, int]) -> None:
        self.is_ascii, self.colours = is_ascii, colours

    def around(self, rows: list[str], axis: list[tuple[str, str]], width: int) -> list[str]:
        has_kinds = any(kind for _, kind in axis)
        lines = ["    " + self.letters(axis)] if has_kinds else []
        lines.append(self.shown("   ┌" + "─" * width + "┐"))
        for index, row in enumerate(rows):
            pair = [*axis[2 * index : 2 * index + 2], (" ", "")][:2]
            lines.append(self.letters(pair) + self.shown(f" │{row}│"))
        return [*lines, self.shown("   └" + "─" * width + "┘")]

    def letters(self, cells: Sequence[tuple[str, str]]) -> str:
        return "".join(self.coloured(letter, kind) for letter, kind in cells)

    def legend(self, letters: dict[str, str]) -> str:
        shown = (f"{self.coloured(c, kind)} {kind}" for kind, c in letters.items())
        return "    " + "  ".join(shown)

    def coloured(self, text: str, kind: str) -> str:
        return f"\x1b[{self.colours[kind]}m{text}\x1b[0m" if kind in self.colours else text

    def shown(self, text: str) -> str:
        return text.translate(_ASCII) if self.is_ascii else text
