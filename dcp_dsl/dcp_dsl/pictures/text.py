"""Draw pictures out of characters."""

from collections.abc import Iterable, Sequence

from dcp_dsl.arrays import Floats
from dcp_dsl.forms.form import Form
from dcp_dsl.pictures.frame import PictureFrame, Stripe, condense, levels, measure_coverage

_HALVES = {(0, 0): " ", (1, 0): "▀", (0, 1): "▄", (1, 1): "█"}
_SHADES = " ░▒▓█"
_ASCII = str.maketrans("▀▄█░▒▓┌┐└┘│─", "',#-+*++++|-")
_ANSI = (34, 33, 32, 35, 36, 31)  # blue, yellow, green, magenta, cyan, red


def draw_text(
    form: Form, frame: PictureFrame, columns: int, *, is_ascii: bool, has_colour: bool
) -> str:
    """Draw a mask with characters; see `Picture.text`."""
    lines = [f"{frame.title}: {frame.summary}"]
    if frame.size == 0 or frame.width == 0:
        return lines[0]
    cell = -(-max(frame.size, frame.width) // max(1, columns))
    # A character is twice as high as it is wide, so either way a pair is square.
    part = measure_coverage(form, cell if cell == 1 else 2 * cell, cell)
    if cell == 1:
        rows = _halves(part)
    else:
        rows = ["".join(_SHADES[level] for level in row) for row in levels(part, 4).tolist()]
    letters = _letters(frame.colours)
    colours = dict(zip(letters, _ANSI * len(letters), strict=False)) if has_colour else {}
    sides = (frame.above, frame.width), (frame.stripes, frame.size)
    axis, down = (
        [_coloured(*mark, colours) for mark in _axis(*side, cell, letters)] for side in sides
    )
    if frame.above:
        lines.append("    " + "".join(axis))
    lines.append(f"   ┌{'─' * len(axis)}┐")
    for index, row in enumerate(rows):
        beside = "".join([*down[2 * index : 2 * index + 2], " "][:2])
        lines.append(f"{beside} │{row}│")
    lines.append(f"   └{'─' * len(axis)}┘")
    if letters:
        legend = (f"{_coloured(letter, kind, colours)} {kind}" for kind, letter in letters.items())
        lines.append("    " + "  ".join(legend))
    if cell > 1:
        lines.append(f"one character: {2 * cell} queries by {cell} keys; {_SHADES[1:]}")
    text = "\n".join(lines)
    return text.translate(_ASCII) if is_ascii else text


def _halves(part: Floats) -> list[str]:
    seen = [*(part > 0).astype(int).tolist(), [0] * part.shape[1]]  # the last row may stand alone
    return [
        "".join(_HALVES[pair] for pair in zip(upper, lower, strict=True))
        for upper, lower in zip(seen[:-1:2], seen[1::2], strict=True)
    ]


def _letters(kinds: Iterable[str]) -> dict[str, str]:
    """Choose a letter for every kind, of its name if one is free.

    >>> _letters(["question", "answer", "again"])
    {'question': 'q', 'answer': 'a', 'again': 'g'}
    """
    given: dict[str, str] = {}
    for kind in kinds:
        wanted = [c for c in kind.lower() + "abcdefghijklmnopqrstuvwxyz" if c.isalpha()]
        given[kind] = next((c for c in wanted if c not in given.values()), "?")
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


def _coloured(text: str, kind: str, colours: dict[str, int]) -> str:
    return f"\x1b[{colours[kind]}m{text}\x1b[0m" if kind in colours else text
