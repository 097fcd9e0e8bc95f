"""Draw pictures as PNG, with Pillow."""

from io import BytesIO

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFont

from dcp_dsl.arrays import Bytes
from dcp_dsl.forms.form import Form, num_keys
from dcp_dsl.pictures.frame import LIGHT, PictureFrame, condense, lay_out_legend, measure_coverage

MARGIN = 14
BAR = 12
LINE = 20
LEFT, TOP = MARGIN + BAR + 4, MARGIN + 2 * LINE + 4 + BAR + 4


def draw_png(form: Form, frame: PictureFrame, side: int) -> bytes:
    """Draw a mask with a matrix of about `side` pixels; see `Picture.png`."""
    matrix = _matrix(form, side)
    side = max(matrix.shape[1], 240)  # room for the words
    below = TOP + len(matrix) + 8
    legend = lay_out_legend([30 + 8 * len(kind) for kind in frame.colours], side)
    lines = legend[-1][1] + 1 if legend else 0
    image = Image.new("RGB", (LEFT + side + MARGIN, below + LINE * lines + MARGIN), LIGHT.paper)
    image.paste(Image.fromarray(matrix), (LEFT, TOP))
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(13)
    draw.text((MARGIN, MARGIN), frame.title, LIGHT.ink, ImageFont.load_default(15))
    draw.text((MARGIN, MARGIN + LINE), frame.summary, LIGHT.ink, font)
    _draw_stripes(draw, frame, matrix.shape)
    for (kind, colour), (place, line) in zip(frame.colours.items(), legend, strict=True):
        x, y = MARGIN + place, below + LINE * line
        draw.rectangle((x, y + 2, x + 11, y + 13), colour)
        draw.text((x + 16, y), kind, LIGHT.ink, font)
    buffer = BytesIO()
    image.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _matrix(form: Form, side: int) -> Bytes:
    """Return the pixels ``[P, P, 3]``: tokens as squares, or several tokens to a pixel."""
    tokens = form.num_tokens, num_keys(form)
    cell = -(-max(1, *tokens) // side)
    coverage = measure_coverage(form, cell, cell) if min(tokens) else np.zeros((1, 1))
    empty, visible = (np.array(ImageColor.getrgb(c)) for c in (LIGHT.empty, LIGHT.visible))
    # The root keeps thin lines of long samples, such as a sink, from fading away.
    strength = np.sqrt(coverage)[..., None]
    pixels: Bytes = np.round(empty + (visible - empty) * strength).astype(np.uint8)
    scale = max(1, side // max(pixels.shape[:2]))
    return np.repeat(np.repeat(pixels, scale, axis=0), scale, axis=1)


def _draw_stripes(draw: ImageDraw.ImageDraw, frame: PictureFrame, shape: tuple[int, ...]) -> None:
    axes = (frame.above, frame.width, shape[1]), (frame.stripes, frame.size, shape[0])
    for is_beside, (stripes, size, side) in enumerate(axes):
        scale = side / max(1, size)
        for stripe in condense(stripes, size, side):
            colour: tuple[int, ...] = ImageColor.getrgb(frame.colours[stripe.kind])
            if stripe.number % 2:
                colour = tuple((part + 255) // 2 for part in colour)
            first, last = round(stripe.start * scale), round(stripe.end * scale) - 1
            box = (LEFT + first, TOP - 4 - BAR, LEFT + last, TOP - 5)
            if is_beside:
                box = (LEFT - 4 - BAR, TOP + first, LEFT - 5, TOP + last)
            if last >= first:
                draw.rectangle(box, colour)
