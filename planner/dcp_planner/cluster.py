"""The machine a plan is made for, and the shape of the attention it runs."""

import math
from dataclasses import dataclass

MOST_DEVICES = 1 << 16
"""Devices that a plan may be for."""
MOST_BYTES_PER_TOKEN = 1 << 24
"""Bytes of q, or of k, that one token may have: byte counts of a batch stay within int64."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Heads and element size of one attention layer, as one context-parallel rank holds them.

    Attributes:
        q_heads, kv_heads: query heads and key/value heads; the first is a multiple of the second.
        head_dim: elements per head.
        dtype_bytes: bytes per element of q, k, v, out and of the gradients sent between devices.

    >>> shape = ModelShape(q_heads=32, kv_heads=8, head_dim=128, dtype_bytes=2)
    >>> shape.kv_bytes, shape.q_bytes + shape.out_bytes
    (4096, 16512)
    """

    q_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for name in ("q_heads", "kv_heads", "head_dim", "dtype_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"ModelShape.{name}: expected at least 1, got {getattr(self, name)}"
                )
        if self.q_heads % self.kv_heads:
            raise ValueError(
                f"ModelShape: q_heads must be a multiple of kv_heads, got {self.q_heads} and "
                f"{self.kv_heads}"
            )
        if self.q_bytes > MOST_BYTES_PER_TOKEN:
            raise ValueError(
                "ModelShape: q_heads * head_dim * dtype_bytes, the bytes of a token, must be at "
                f"most {MOST_BYTES_PER_TOKEN}, got {self.q_bytes}"
            )

    @property
    def q_bytes(self) -> int:
        """Bytes of q per token."""
        return self.q_heads * self.head_dim * self.dtype_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of k and v together per token."""
        return 2 * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def out_bytes(self) -> int:
        """Bytes of out and of its fp32 log-sum-exp per token."""
        return self.q_bytes + 4 * self.q_heads

    @property
    def q_backward_bytes(self) -> int:
        """Bytes per token of a remote query row in backward: q, dout, lse, delta."""
        return 2 * self.q_bytes + 8 * self.q_heads

    @property
    def flops_per_pair(self) -> int:
        """Forward FLOPs of one visible pair, all heads: two products of ``2 * head_dim`` each."""
        return 4 * self.q_heads * self.head_dim


BACKWARD_FLOPS_RATIO = 2.5
"""Backward FLOPs per forward FLOP: five products a tile, not two (FlashAttention-2, Sec. 3)."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of equal devices, and what links and devices sustain.

    Attributes:
        nodes, devices_per_node: devices are numbered node after node.
        intra_bytes_per_s: what one device sends, and at the same time receives, inside its node.
        inter_bytes_per_s: the same over the network, per device.
        latency_s: seconds before the first byte of a message arrives.
        flops_per_s: attention FLOPs per second of one device.
        memory_bytes: memory of one device.
        name: how tables call it.
        source: where the constants come from.

    Defaults: an A100-80GB p4de node as in the DCP paper (Sec. 7.1): NVSwitch 300 GB/s each way,
    4 x 100 Gbit/s shared by 8 devices, 280 TFLOP/s upper bound of the paper's cost model at 60 %.
    """

    nodes: int = 1
    devices_per_node: int = 8
    intra_bytes_per_s: float = 300e9
    inter_bytes_per_s: float = 6.25e9
    latency_s: float = 10e-6
    flops_per_s: float = 168e12
    memory_bytes: int = 80 * 10**9
    name: str = "a100-p4de"
    source: str = "DCP (SOSP'25), Sec. 7.1; AWS p4de.24xlarge data sheet"

    def __post_init__(self) -> None:
        for name in (
            "nodes", "devices_per_node", "intra_bytes_per_s", "inter_bytes_per_s", "flops_per_s",
            "memory_bytes",
        ):  # fmt: skip
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"Cluster.{name}: expected more than 0, got {getattr(self, name)}")
        if not 0 <= self.latency_s < math.inf:
            raise ValueError(f"Cluster.latency_s: expected at least 0, got {self.latency_s}")

    @property
    def num_devices(self) -> int:
        """Devices of all nodes, R."""
        return self.nodes * self.devices_per_node

    def node_of(self, device: int) -> int:
        """Give the node that holds `device`."""
        return device // self.devices_per_node
