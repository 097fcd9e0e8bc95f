"""Colours: Okabe-Ito for kinds of events, lightness ramps for devices, divisions and amounts.

A kind has its hue everywhere. Devices cannot: nobody can tell 32 hues apart, so a node is a hue and
its devices are steps of lightness; with one node the hue runs along with the lightness.
"""

import math

import numpy as np

from dcp_planner import Cluster

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

    >>> oklch(1, 0, 0), oklch(0, 0, 0)
    ('#ffffff', '#000000')
    """
    a = chroma * math.cos(math.radians(hue_degrees))
    b = chroma * math.sin(math.radians(hue_degrees))
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
    """Return one colour per device, node after node.

    >>> len(set(device_colours(4, 8)))
    32
    """
    if nodes == 1:
        return ramp(devices_per_node)
    colours = []
    for node in range(nodes):
        hue = 250.0 + 360.0 * node / nodes
        for i in range(devices_per_node):
            step = i / max(1, devices_per_node - 1)
            colours.append(oklch(0.48 + 0.37 * step, 0.125 - 0.035 * step, hue))
    return colours


def ramp(count: int) -> list[str]:
    """Return `count` colours of rising lightness, from violet over teal to yellow.

    >>> ramp(1) == ramp(3)[:1]
    True
    """
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
    encoded = 12.92 * clipped if clipped <= 0.0031308 else 1.055 * clipped ** (1 / 2.4) - 0.055
    return round(255 * encoded)


def cluster_colours(cluster: Cluster) -> list[str]:
    """Return the colour of every device of a cluster, whose nodes may differ in size."""
    node, per_node = cluster.node_of_device, cluster.devices_per_node
    place = np.arange(cluster.num_devices) - cluster.node_ptr[node]
    colours = device_colours(cluster.nodes, per_node)
    return [colours[slot] for slot in (node * per_node + place).tolist()]
