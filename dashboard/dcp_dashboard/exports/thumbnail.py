"""A small picture of a mask for the list of plans: visible share per pixel, as a PNG.

Own few lines instead of an imaging library: a palette image of 64 x 64 pixels, one deflate stream.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from dcp_planner import Plan

SIDE = 64
COLOUR = (0x3A, 0x7F, 0xC6)


def thumbnail(plan: Plan) -> bytes:
    """Draw the mask of a plan, transparent where nothing is visible; O(W).

    The pairs of a tile are spread evenly over the pixels it touches; the strongest blue is a pixel
    whose pairs are all visible.
    """
    shares = pair_shares(plan)
    alpha = np.where(shares > 0, 110 + np.round(145 * np.minimum(1.0, shares)), 0)
    return png(alpha.astype(np.uint8))


def pair_shares(plan: Plan) -> NDArray[np.float64]:
    """Give the visible share of each pixel's area, float64 ``[SIDE, SIDE]``, rows are queries."""
    scale = SIDE / max(1, plan.num_tokens)
    first = np.minimum((plan.blocks.start * scale).astype(np.int64), SIDE - 1)
    last = np.maximum(np.ceil(plan.blocks.end * scale).astype(np.int64), first + 1)
    tiles = plan.tiles
    area = np.zeros((SIDE, SIDE))
    rows, columns = (last - first)[tiles.q_block], (last - first)[tiles.kv_block]
    per_pixel = tiles.pairs / (rows * columns * plan.head_groups)  # each tile is there per group
    for down in range(int(rows.max(initial=0))):
        for right in range(int(columns.max(initial=0))):
            inside = (down < rows) & (right < columns)
            at = (first[tiles.q_block[inside]] + down, first[tiles.kv_block[inside]] + right)
            np.add.at(area, at, per_pixel[inside])
    shares: NDArray[np.float64] = area * scale**2
    return shares


def png(alpha: NDArray[np.uint8]) -> bytes:
    """Write an image of one colour with the given opacity, uint8 ``[height, width]``.

    Source: PNG specification, third edition: colour type 3 with a `tRNS` chunk.
    """
    height, width = alpha.shape
    palette = bytes(COLOUR) * 256
    rows = b"".join(b"\0" + row.tobytes() for row in alpha)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"tRNS", bytes(range(256))),
            (b"IDAT", zlib.compress(rows)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
