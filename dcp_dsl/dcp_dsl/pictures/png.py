"""Draw pictures as PNG, with Pillow."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from dcp_dsl.pictures import palette
from dcp_dsl.pictures.axes import condense, kinds
from dcp_dsl.pictures.drawing import Drawing, measure_coverage

MARGIN = 14
BAR = 12
LINE = 20


def draw_png(drawing: Drawing, side: int) -> bytes:
    """Draw a mask with a matrix of about `side` pixels; see `Picture.png`."""
    matrix = _matrix(drawing, side)
    side = max(len(matrix), 240)  # room for the words
    top, left = MARGIN + 2 * LINE + 4 + BAR + 4, MARGIN + BAR + 4
    names = kinds(drawing.stripes)
    lines = _legend_lines(names, side)
    below = top + len(matrix) + 8
    size = (left + side + MARGIN, below + LINE * len(lines) + MARGIN)
    image = Image.new("RGB", size, palette.PAPER)
    image.paste(Image.fromarray(matrix), (left, top))
    draw = ImageDraw.Draw(image)
    bold = ImageFont.load_default(15)
    font = ImageFont.load_default(13)
    draw.text((MARGIN, MARGIN), drawing.title, palette.INK, bold)
    draw.text((MARGIN, MARGIN + LINE), drawing.summary, palette.INK, font)
    _draw_stripes(draw, drawing, names, len(matrix), (left, top))
    for line, entries in enumerate(lines):
        for x, index in entries:
            y = below + LINE * line
            draw.rectangle((MARGIN + x, y + 2, MARGIN + x + 11, y + 13), palette.kind_colour(index))
            draw.text((MARGIN + x + 16, y), names[index], palette.INK, font)
    buffer = BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _matrix(drawing: Drawing, side: int) -> NDArray[np.uint8]:
    """Return the pixels ``[P, P, 3]``: tokens as squares, or several tokens to a pixel."""
    tokens = max(1, drawing.bound.num_tokens)
    cell = -(-tokens // side)
    coverage = measure_coverage(drawing.bound, cell, cell).part
    if not coverage.size:
        coverage = np.zeros((1, 1))
    empty, visible = (np.array(ImageColor.getrgb(c)) for c in (palette.EMPTY, palette.VISIBLE))
    # The root keeps thin lines of long samples, such as a sink, from fading away.
    strength = np.sqrt(coverage)[..., None]
    pixels: NDArray[np.uint8] = np.round(empty + (visible - empty) * strength).astype(np.uint8)
    scale = max(1, side // len(pixels))
    return np.repeat(np.repeat(pixels, scale, axis=0), scale, axis=1)


def _draw_stripes(
    draw: ImageDraw.ImageDraw,
    drawing: Drawing,
    names: tuple[str, ...],
    side: int,
    corner: tuple[int, int],
) -> None:
    left, top = corner
    scale = side / max(1, drawing.bound.num_tokens)
    for stripe in condense(drawing.stripes, drawing.bound.num_tokens, side):
        red, green, blue = ImageColor.getrgb(palette.kind_colour(names.index(stripe.kind)))[:3]
        colour = (red, green, blue)
        if stripe.number % 2:
            colour = ((red + 255) // 2, (green + 255) // 2, (blue + 255) // 2)
        first, last = round(stripe.start * scale), round(stripe.end * scale) - 1
        if last >= first:
            draw.rectangle((left + first, top - 4 - BAR, left + last, top - 5), colour)
            draw.rectangle((left - 4 - BAR, top + first, left - 5, top + last), colour)


def _legend_lines(names: tuple[str, ...], side: int) -> list[list[tuple[int, int]]]:
    """Return (x, kind) of every entry, line by line."""
    lines: list[list[tuple[int, int]]] = []
    x = side + 1
    for index, name in enumerate(names):
        width = 30 + 8 * len(name)
        if x + width > side or not lines:
            lines.append([])
            x = 0
        lines[-1].append((x, index))
        x += width
    return lines
