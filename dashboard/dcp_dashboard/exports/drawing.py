"""A sheet to draw on in units, whatever the number of pixels per unit; Pillow does the drawing."""

import io
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

from dcp_dashboard.exports.raster import Pixels

Anchor = Literal["ls", "ms", "rs"]
"""Left, middle or right end of a text's baseline, in Pillow's words."""


MISSING = str.maketrans({"\u00d7": "x", "\u00b5": "u", "\u00a0": " "})
"""The font that comes with Pillow has Latin letters only, and not all signs."""


class Sheet:
    """A picture measured in units of 1/96 inch."""

    def __init__(self, background: str, width: int, height: int, scale: int) -> None:
        self.scale = scale
        self._image = Image.new("RGB", (width * scale, height * scale), background)
        self._pen = ImageDraw.Draw(self._image)

    def box(self, corner: tuple[float, float], size: tuple[float, float], colour: str) -> None:
        """Fill a rectangle; what is there at all is at least one pixel."""
        left, top = (round(value * self.scale) for value in corner)
        right, bottom = (
            max(start + 1, round((value + extent) * self.scale))
            for start, value, extent in zip((left, top), corner, size, strict=True)
        )
        self._pen.rectangle((left, top, right - 1, bottom - 1), fill=colour)

    def text(
        self,
        at: tuple[float, float],
        text: str,
        colour: str,
        *,
        size: int = 12,
        anchor: Anchor = "ls",
    ) -> None:
        """Write one line, the anchor of its baseline at a point."""
        font = ImageFont.load_default(size * self.scale)
        place = (at[0] * self.scale, at[1] * self.scale)
        known = text.translate(MISSING).encode("latin-1", "replace").decode("latin-1")
        self._pen.text(place, known, fill=colour, font=font, anchor=anchor)

    def paste(self, corner: tuple[float, float], pixels: Pixels) -> None:
        """Put pixels in, one to one."""
        left, top = (round(value * self.scale) for value in corner)
        self._image.paste(Image.fromarray(pixels), (left, top))

    def png(self) -> bytes:
        """Give the file."""
        buffer = io.BytesIO()
        self._image.save(buffer, "PNG", optimize=True)
        return buffer.getvalue()
