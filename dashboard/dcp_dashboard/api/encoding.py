"""The encoding that server and canvases share: columns behind a JSON header, and colours.

```
offset 0        4 bytes   b"DCPC"
offset 4        u32       H, bytes of the header; 8 + H is a multiple of 8
offset 8        H bytes   JSON (UTF-8), padded with spaces at the end
offset 8 + H    columns   little-endian, each begins at a multiple of 8
```
The header is an object with entries of the caller, `"schema"`, and `"columns"`, a list of
`{"name", "dtype", "length", "offset"}` whose offsets count from the end of the header. `dtype` is
numpy's short name (`u1 u2 u4 i2 i4 f8`). `web/src/api.ts` makes typed arrays over the body
without a copy.

Each kind of event has a hue of its own everywhere (Okabe-Ito). Devices cannot have one: nobody can
tell 32 hues apart. So a node is a band of hues; its devices are steps of lightness, two of each, at
both sides of the band. With one node the hue changes along with the lightness. Divisions and
amounts are ramps of lightness.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_planner import Cluster

MAGIC = b"DCPC"
ALIGNMENT = 8
DTYPES = ("u1", "u2", "u4", "i2", "i4", "f8")


def encode(schema: str, header: Mapping[str, Any], columns: Mapping[str, NDArray[Any]]) -> bytes:
    """Pack one-dimensional columns of `DTYPES` behind a JSON header; they may differ in length."""
    described, body = [], bytearray()
    for name, column in columns.items():
        dtype = column.dtype.str[1:]  # "u4" of "<u4": without the order of the bytes
        if dtype not in DTYPES:
            raise ValueError(f"column {name!r}: expected one of {DTYPES}, got {dtype}")
        described.append({"name": name, "dtype": dtype, "length": len(column), "offset": len(body)})
        body += column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()
        # A typed array over a buffer must begin at a multiple of its element's size, at most 8.
        body += bytes(-len(body) % ALIGNMENT)
    full = {"schema": schema, **header, "columns": described}
    text = json.dumps(full, separators=(",", ":")).encode()
    # Spaces behind JSON change nothing, and the body begins at a multiple of 8, too.
    text += b" " * (-(len(text) + len(MAGIC) + 4) % ALIGNMENT)
    return MAGIC + struct.pack("<I", len(text)) + text + bytes(body)


def decode(payload: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Unpack header and columns of `encode`; the tests read payloads with it."""
    if payload[:4] != MAGIC:
        raise ValueError(f"expected a payload that begins with {MAGIC!r}, got {payload[:4]!r}")
    (size,) = struct.unpack_from("<I", payload, 4)
    header: dict[str, Any] = json.loads(payload[8 : 8 + size])
    columns = {
        column["name"]: np.frombuffer(
            payload, "<" + column["dtype"], column["length"], 8 + size + column["offset"]
        )
        for column in header["columns"]
    }
    return header, columns


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Cast integers to the first of u1, u2, u4, i2, i4 that holds them, else to f8."""
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    for dtype in (np.uint8, np.uint16, np.uint32, np.int16, np.int32):
        if np.iinfo(dtype).min <= least and most <= np.iinfo(dtype).max:
            return values.astype(dtype)
    return values.astype(np.float64)


KIND_COLOURS = {
    "attention": "#0072b2",
    "reduction": "#56b4e9",
    "copy": "#cc79a7",
    "send": "#e69f00",
    "receive": "#009e73",
    "wait": "#d55e00",
}
"""Okabe & Ito (2008), `Color Universal Design`; black and yellow left out for the two themes."""

NEUTRAL = "#8a94a3"


def oklch(lightness: float, chroma: float, hue_degrees: float) -> str:
    """Convert a point in OKLCH to its sRGB colour ``#rrggbb``; clipped where sRGB ends.

    Source: B. Ottosson, "A perceptual color space for image processing" (2020).
    """
    a = chroma * math.cos(math.radians(hue_degrees))
    b = chroma * math.sin(math.radians(hue_degrees))
    # OKLab to the responses of the three cones, these to linear sRGB.
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{_encode_channel(value):02x}" for value in linear)


def device_colours(nodes: int, devices_per_node: int) -> list[str]:
    """Return one colour per device, node after node."""
    if nodes == 1:
        return ramp(devices_per_node)
    colours = []
    for node in range(nodes):
        # Hues at equal distances, from blue on; a band is two fifths of the distance.
        hue, side = 250.0 + 360.0 * node / nodes, 0.2 * 360.0 / nodes
        for i in range(devices_per_node):
            step = (i // 2) / max(1, (devices_per_node - 1) // 2)
            turned = hue + (side if i % 2 else -side)
            colours.append(oklch(0.40 + 0.47 * step, 0.135 - 0.03 * step, turned))
    return colours


def ramp(count: int) -> list[str]:
    """Return `count` colours of rising lightness, from violet over teal to yellow."""
    colours = []
    for i in range(count):
        step = i / max(1, count - 1)
        colours.append(oklch(0.46 + 0.41 * step, 0.125 + 0.01 * step, 295.0 - 195.0 * step))
    return colours


def tints(count: int) -> list[str]:
    """Return `count` steps of one blue from pale to strong, for amounts."""
    last = max(1, count - 1)
    return [oklch(0.90 - 0.45 * i / last, 0.04 + 0.10 * i / last, 250.0) for i in range(count)]


def _encode_channel(linear: float) -> int:
    clipped = min(1.0, max(0.0, linear))
    # The transfer curve of sRGB (IEC 61966-2-1).
    encoded = 12.92 * clipped if clipped <= 0.0031308 else 1.055 * clipped ** (1 / 2.4) - 0.055
    return round(255 * encoded)


def cluster_colours(cluster: Cluster) -> list[str]:
    """Return the colour of every device of a cluster, whose nodes may differ in size."""
    node, per_node = cluster.node_of_device, cluster.devices_per_node
    place = np.arange(cluster.num_devices) - cluster.node_ptr[node]
    colours = device_colours(cluster.nodes, per_node)
    # A node of fewer devices leaves the last steps of its hue unused.
    return [colours[slot] for slot in (node * per_node + place).tolist()]
