"""The machine that a plan is made for, and the shape of the attention that runs there."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, get_args

import numpy as np

from dcp_dsl.arrays import Floats, Indices, Ints, settle
from dcp_planner.errors import ClusterError

MOST_DEVICES = 1 << 16
"""Most devices of a cluster that can be planned for."""
MOST_NODES = 1 << 20
"""Most nodes, and most devices of a node, in a cluster; `MOST_DEVICES` limits their product."""
FLOAT32_BYTES = 4
MOST_BYTES_PER_TOKEN = 1 << 24
"""Most bytes of q, or of k, in one token: byte counts of a batch stay within int64."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Heads and element size of one attention layer, as one context-parallel rank holds them.

    Attributes:
        q_heads, kv_heads: query heads and key/value heads; the first is a multiple of the second.
        head_dim: elements per head.
        dtype_bytes: bytes per element of q, k and v.
        float32_partials: partial outputs and partial gradients travel in float32, not in the type
            of the inputs; set to False where that type is not smaller than float32.
        exact_sums: partial dk and dv travel as digits of whole numbers, `sum_digits` for each
            element and an exponent for each row of a head. They add up to the same bits in any
            order, so plans are reproducible; other partial results do not travel.

    Raises:
        ClusterError: if a number is below 1, or they do not go together.

    >>> shape = ModelShape(q_heads=32, kv_heads=8, head_dim=128, dtype_bytes=2)
    >>> shape.kv_bytes, shape.q_bytes + shape.out_bytes
    (4096, 16512)
    """

    q_heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    dtype_bytes: int = 2
    float32_partials: bool = False
    exact_sums: bool = False

    def __post_init__(self) -> None:
        for name in ("q_heads", "kv_heads", "head_dim", "dtype_bytes"):
            if getattr(self, name) < 1:
                raise ClusterError(
                    f"ModelShape.{name}: expected at least 1, got {getattr(self, name)}", name
                )
        if self.q_heads % self.kv_heads:
            raise ClusterError(
                f"ModelShape: q_heads must be a multiple of kv_heads, got {self.q_heads} and "
                f"{self.kv_heads}",
                "kv_heads",
            )
        if self.q_bytes > MOST_BYTES_PER_TOKEN:
            raise ClusterError(
                "ModelShape: q_heads * head_dim * dtype_bytes, the bytes of a token, must be at "
                f"most {MOST_BYTES_PER_TOKEN}, got {self.q_bytes}",
                "head_dim",
            )
        can_widen = self.dtype_bytes < FLOAT32_BYTES and not self.exact_sums
        settle(self, float32_partials=self.float32_partials and can_widen)

    def is_same_model(self, other: "ModelShape") -> bool:
        """Compare all but the type in which partial results travel."""
        types = other.float32_partials, other.exact_sums
        return replace(self, float32_partials=types[0], exact_sums=types[1]) == other

    @property
    def partials(self) -> Literal["float32", "input"]:
        """Type in which partial results travel, as `PlanConfig` names it."""
        return "float32" if self.float32_partials else "input"

    @property
    def partial_bytes(self) -> int:
        """Bytes per element of a partial output or a partial gradient on its way."""
        return FLOAT32_BYTES if self.float32_partials else self.dtype_bytes

    @property
    def sum_digits(self) -> int:
        """Digits, an int32 each, of an element of an exact sum.

        >>> [ModelShape(dtype_bytes=size).sum_digits for size in (2, 4, 8)]
        [2, 3, 4]
        """
        return 2 + (self.dtype_bytes > 2) + (self.dtype_bytes > FLOAT32_BYTES)

    @property
    def q_bytes(self) -> int:
        """Bytes of q per token."""
        return self.q_heads * self.head_dim * self.dtype_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of k and v together per token."""
        return 2 * self.kv_heads * self.head_dim * self.dtype_bytes

    @property
    def dq_bytes(self) -> int:
        """Bytes of a partial dq, as it travels, per token."""
        return self.q_heads * self.head_dim * self.partial_bytes

    @property
    def dkv_bytes(self) -> int:
        """Bytes of partial dk and dv, as they travel, per token."""
        if self.exact_sums:
            return 8 * self.kv_heads * (self.head_dim * self.sum_digits + 1)
        return 2 * self.kv_heads * self.head_dim * self.partial_bytes

    @property
    def out_bytes(self) -> int:
        """Bytes of a partial out, as it travels, and of its fp32 log-sum-exp per token."""
        return self.dq_bytes + FLOAT32_BYTES * self.q_heads

    @property
    def q_backward_bytes(self) -> int:
        """Bytes per token of a remote query row in backward: q, dout, lse, delta."""
        # 8: lse and delta, a float32 each per head.
        return 2 * self.q_bytes + 8 * self.q_heads

    @property
    def flops_per_pair(self) -> int:
        """Forward FLOPs of one visible pair, all heads: two products of ``2 * head_dim`` each."""
        return 4 * self.q_heads * self.head_dim

    @property
    def round_trip_bytes(self) -> tuple[int, int]:
        """Bytes per token that remote queries, and remote keys, move in forward and backward."""
        queries = self.q_bytes + self.out_bytes + self.q_backward_bytes + self.dq_bytes
        return queries, 2 * self.kv_bytes + self.dkv_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a JSON object; `float32_partials` only where it is true.

        >>> ModelShape(8, 2, 128).to_json()
        {'q_heads': 8, 'kv_heads': 2, 'head_dim': 128, 'dtype_bytes': 2}
        """
        return _stated(self)


MOST_RATE = 1e20
"""Most bytes or FLOPs per second of a device or link."""
MOST_OVERHEAD_S = 3600.0
"""Most seconds of a latency or a launch."""
MOST_KERNEL_TILE = 1 << 16
"""Most tokens at the edge of a kernel tile."""
KERNEL_SCHEDULES = ("list", "persistent", "split")
"""Ways to assign blocks of threads to multiprocessors."""
MessageOrder: TypeAlias = Literal["any", "fifo", "grouped"]
MESSAGE_ORDERS: tuple[MessageOrder, ...] = get_args(MessageOrder)
"""Orders in which transports run messages.

``any``: a message starts when both ends have launched it and both ports are free, lowest first.
``fifo``: messages leave in the order in which they become ready; the target's port holds nothing
up. Gloo works this way.
``grouped``: all messages of a device in one (division, hop) form a group; inputs and results have a
communicator each, which runs its groups in order. NCCL works this way.
"""
PortSharing: TypeAlias = Literal["fair", "exclusive"]
PORT_SHARINGS: tuple[PortSharing, ...] = get_args(PortSharing)
"""Ways in which messages that are ready share a port.

``fair``: messages from one device to another go one after the other, those of different devices at
once, each at its max-min fair share of both ports. Sockets work this way.
``exclusive``: a port serves one message at a time, and messages whose other port is busy wait.
"""
MOST_RATIO = 1000.0
"""Most times that a device may be faster or slower than the cluster's rates."""

Sizes = TypeVar("Sizes", float, Floats)

BACKWARD_FLOPS_RATIO = 2.5
"""Backward FLOPs per forward FLOP: five products a tile, not two (FlashAttention-2, Sec. 3)."""


@dataclass(frozen=True, slots=True)
class Link:
    """Constants of one class of links, for each port; a port sends and receives independently."""

    bytes_per_s: float  # rate at which the port sends, and at the same time receives
    latency_s: float  # seconds between leaving one port and arriving at the other
    launch_s: float  # seconds that a message occupies both ports on top of its bytes

    def busy_s(self, size_bytes: Sizes) -> Sizes:
        """Compute the seconds that a message of `size_bytes` occupies both of its ports."""
        return size_bytes / self.bytes_per_s + self.launch_s


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices by node, with the rates and delays of devices and links.

    ``Cluster(4, 8)`` has equal nodes of equal devices; `devices` describes unequal ones. Here the
    second node has one device less, and its last device works at four fifths of the rate:

    >>> cluster = Cluster(2, 3, devices=((1, 1, 1), (1, 0.8)))
    >>> cluster.num_devices, cluster.node_of_device.tolist(), cluster.speed_of_device.tolist()
    (5, [0, 0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0, 0.8])

    Every constant from `inter_latency_s` on has a default that leaves its effect out, so that
    ``Cluster(4, 8)`` is a machine without overheads. Measured ones come as a preset
    (`dcp_planner.preset`), from a TOML file (`find_cluster`) or from ``dcpm calibrate``.

    Attributes:
        nodes, devices_per_node: of the largest node; devices are numbered node after node.
        intra_bytes_per_s: bytes that one device sends, and at the same time receives, in its node.
        inter_bytes_per_s: the same over the network: its share when all devices of a node send.
        latency_s: seconds before the first byte of a message arrives.
        flops_per_s: attention FLOPs per second of one device in forward, on full kernel tiles.
        memory_bytes: memory of one device.
        name: of the cluster, for tables.
        source: where the constants come from.
        inter_latency_s: latency between nodes; ``None``: as `latency_s`.
        devices_per_nic: neighbouring devices of a node that share one network port, which carries
            ``inter_bytes_per_s * devices_per_nic``; alone, a device has all of it.
        backward_flops_per_s: the same rate in backward; ``None``: as `flops_per_s`.
        kernel_tile: tokens of the edge of the tile that the attention kernel computes as a whole,
            visible or not; 1: only visible pairs cost.
        kernel_launch_s: seconds before each attention or reduction on a device, even if the host
            has queued it long before.
        message_launch_s: seconds that a message occupies both ports on top of its bytes.
        copy_bytes_per_s: bytes that a device reads and writes per second when it merges or copies;
            ``None``: free.
        sms: multiprocessors of a device; each runs one block of threads (CTA) at a time.
        cta_keys: fixed time of a CTA (start, state, end), as the number of keys that take as long.
        kernel_schedule: how CTAs are assigned to multiprocessors, one of `KERNEL_SCHEDULES`; the
            module `cost_model` explains them.
        pass_s: seconds that the host takes for one direction of a layer: checks, buffers, copies of
            the own blocks, results.
        host_kernel_s: seconds that the host takes for each attention or reduction.
        host_message_s: seconds that the host takes for each message of a device, at either end; the
            blocks that one device launches together for another are one message.
        host_runs_ahead: whether the host only queues work, so that its own work for the next layer
            overlaps the device's for this one, as on CUDA; otherwise the device stands still.
        message_order: order in which the transport runs messages, one of `MESSAGE_ORDERS`.
        port_sharing: how messages share ports, one of `PORT_SHARINGS`; ``None``: ``fair``, but
            ``exclusive`` where messages are grouped.
        comm_sms: multiprocessors that do not compute while messages of a device are under way; no
            effect on a device of one.
        devices: for each node the rate of each of its devices, relative to `flops_per_s` and
            `copy_bytes_per_s`; empty: all are 1.
        slow_ports: devices whose network port carries less, each with its share of
            `inter_bytes_per_s`, such as ``((3, 0.5),)``; a message takes the slower of its ports.
        rails: network port j of a node is on rail ``j % rails``.
        nodes_per_leaf: neighbouring nodes whose ports of one rail meet in one switch; ``None``:
            those of all nodes do.
        spine_bytes_per_s: bytes that a device sends to another rail or another leaf, its share when
            all devices of a node do so; ``None``: as `inter_bytes_per_s`.

    Raises:
        ClusterError: if a value is no number, zero, negative, infinite or absurdly large.

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
    inter_latency_s: float | None = None
    devices_per_nic: int = 1
    backward_flops_per_s: float | None = None
    kernel_tile: int = 1
    kernel_launch_s: float = 0.0
    message_launch_s: float = 0.0
    copy_bytes_per_s: float | None = None
    sms: int = 1
    cta_keys: int = 0
    kernel_schedule: str = "list"
    pass_s: float = 0.0
    host_kernel_s: float = 0.0
    host_message_s: float = 0.0
    host_runs_ahead: bool = False
    message_order: MessageOrder = "any"
    port_sharing: PortSharing | None = None
    comm_sms: int = 0
    devices: tuple[tuple[float, ...], ...] = ()
    rails: int = 1
    nodes_per_leaf: int | None = None
    spine_bytes_per_s: float | None = None
    slow_ports: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        for name in ("nodes", "devices_per_node", "devices_per_nic", "kernel_tile", "memory_bytes",
                     "rails", "nodes_per_leaf", "sms"):  # fmt: skip
            if getattr(self, name) is None and name == "nodes_per_leaf":
                continue
            most = {"memory_bytes": MOST_RATE, "kernel_tile": MOST_KERNEL_TILE, "sms": 1 << 14}
            _check_count(name, getattr(self, name), int(most.get(name, MOST_NODES)))
        for name in RATES:
            self._settle_number(name, _check_rate)
        for name in OVERHEADS:
            self._settle_number(name, _check_overhead)
        _check_count("cta_keys", self.cta_keys, MOST_KERNEL_TILE, least=0)
        # One multiprocessor is left to compute; a device of one ignores the field.
        most_sms = self.sms - 1 if self.sms > 1 else 1 << 14
        _check_count("comm_sms", self.comm_sms, most_sms, least=0)
        _check_choice("kernel_schedule", self.kernel_schedule, KERNEL_SCHEDULES)
        _check_choice("message_order", self.message_order, MESSAGE_ORDERS)
        if self.port_sharing is not None:
            _check_choice("port_sharing", self.port_sharing, PORT_SHARINGS)
        is_flag = isinstance(self.host_runs_ahead, bool)
        _require(is_flag, "host_runs_ahead", "true or false", self.host_runs_ahead)
        self._check_devices()
        settle(self, devices=tuple(tuple(map(float, node)) for node in self.devices))
        if self.num_devices > MOST_DEVICES:
            raise ClusterError(
                f"expected a cluster of at most {MOST_DEVICES} devices, got {self.nodes} nodes of "
                f"{self.devices_per_node}; plan for the devices that share one batch",
                "nodes",
            )
        self._check_slow_ports()

    def _settle_number(self, name: str, check: Callable[[str, object], None]) -> None:
        value = getattr(self, name)
        if value is not None or self.__dataclass_fields__[name].default is not None:
            check(name, value)
            settle(self, **{name: float(value)})  # 0 and 0.0 are one plan, with one digest

    def _check_devices(self) -> None:
        if not self.devices:
            return
        devices = tuple(tuple(node) for node in self.devices)
        if sum(map(len, devices)) > MOST_DEVICES or not all(devices):
            raise ClusterError(
                f"Cluster.devices: expected 1 to {MOST_DEVICES} devices, at least one in each node",
                "devices",
            )
        for speed in (speed for node in devices for speed in node):
            is_rate = _is_number(speed) and 1 / MOST_RATIO <= speed <= MOST_RATIO
            expected = f"relative rates of {1 / MOST_RATIO:g} to {MOST_RATIO:g}"
            _require(is_rate, "devices", expected, speed)
        shape = len(devices), max(map(len, devices))
        if shape != (self.nodes, self.devices_per_node):
            raise ClusterError(
                f"Cluster.devices: has {shape[0]} nodes of at most {shape[1]} devices, expected "
                f"`nodes` = {self.nodes} and `devices_per_node` = {self.devices_per_node}",
                "devices",
            )
        is_equal = all(node == (1.0,) * shape[1] for node in devices)
        # Equal devices, listed or counted, are one cluster: equal values, one digest.
        settle(self, devices=() if is_equal else devices)

    def _check_slow_ports(self) -> None:
        last = self.num_devices - 1
        expected = f"pairs of a device, 0 to {last}, and a share up to 1, such as [[{last}, 0.5]]"
        found: dict[int, float] = {}
        is_listed = isinstance(self.slow_ports, list | tuple) and len(self.slow_ports) <= last + 1
        _require(is_listed, "slow_ports", expected, self.slow_ports)
        for pair in self.slow_ports:
            is_pair = isinstance(pair, list | tuple) and len(pair) == 2
            _require(is_pair, "slow_ports", expected, pair)
            device, share = pair
            is_device = isinstance(device, int) and not isinstance(device, bool)
            is_device = is_device and 0 <= device <= last and device not in found
            is_share = _is_number(share) and 1 / MOST_RATIO <= share <= 1
            _require(is_device and is_share, "slow_ports", f"{expected}; a device once", pair)
            found[device] = float(share)
        slow = tuple((device, share) for device, share in sorted(found.items()) if share < 1)
        settle(self, slow_ports=slow)

    @property
    def num_devices(self) -> int:
        """Devices of all nodes, R."""
        return sum(map(len, self.devices)) or self.nodes * self.devices_per_node

    @property
    def is_sharing_ports(self) -> bool:
        """Whether messages that meet in a port share it; see `port_sharing`."""
        if self.port_sharing is None:
            return self.message_order != "grouped"
        return self.port_sharing == "fair"

    @property
    def node_ptr(self) -> Ints:
        """First device of each node, and the number of all, int64 ``[N+1]``."""
        if not self.devices:
            return np.arange(self.nodes + 1) * self.devices_per_node
        return np.cumsum(np.array([0, *map(len, self.devices)], np.int64))

    @property
    def node_of_device(self) -> Ints:
        """Node of each device, int64 ``[R]``."""
        if not self.devices:
            # A tenth of the time of the way below, and each prediction asks several times.
            return np.asarray(np.arange(self.num_devices) // self.devices_per_node)
        return np.repeat(np.arange(self.nodes), np.diff(self.node_ptr))

    @property
    def speed_of_device(self) -> Floats:
        """Rate of each device relative to the cluster's rates, float64 ``[R]``."""
        if not self.devices:
            return np.ones(self.num_devices)
        return np.array([speed for node in self.devices for speed in node], np.float64)

    @property
    def port_slowness(self) -> Floats:
        """Times that bytes take longer through the network port of each device, float64 ``[R]``.

        >>> Cluster(2, 2, slow_ports=((3, 0.5),)).port_slowness.tolist()
        [1.0, 1.0, 1.0, 2.0]
        """
        found = np.ones(self.num_devices)
        for device, share in self.slow_ports:
            found[device] = 1 / share
        return found

    @property
    def work_of_device(self) -> Floats:
        """Share of the work at which all devices end together, over the mean, float64 ``[R]``."""
        speed = self.speed_of_device
        return np.asarray(speed / speed.mean())

    @property
    def nic_of_device(self) -> Ints:
        """Network port of each device, int64 ``[R]``; neighbours of a node share one.

        >>> Cluster(2, 4, devices_per_nic=2).nic_of_device.tolist()
        [0, 0, 1, 1, 2, 2, 3, 3]
        """
        node = self.node_of_device
        place = np.arange(self.num_devices) - self.node_ptr[node]
        nics_per_node = -(-self.devices_per_node // self.devices_per_nic)
        return np.asarray(node * nics_per_node + place // self.devices_per_nic)

    def link_class(self, source: Indices, target: Indices) -> Ints:
        """Find the class of the link of each message, an index into `links`, int64 ``[X]``.

        0 inside a node, 1 between nodes, 2 between nodes through the spine: from rail to rail, or
        from leaf to leaf.

        >>> two_rails = Cluster(2, 2, rails=2)
        >>> two_rails.link_class(np.array([0, 0, 0]), np.array([1, 2, 3])).tolist()
        [0, 1, 2]
        """
        node = self.node_of_device
        found = (node[source] != node[target]).astype(np.int64)
        if self.rails > 1 or self.nodes_per_leaf is not None:
            nics_per_node = -(-self.devices_per_node // self.devices_per_nic)
            rail = self.nic_of_device % nics_per_node % self.rails
            leaf = node // (self.nodes_per_leaf or self.nodes)
            crosses = (rail[source] != rail[target]) | (leaf[source] != leaf[target])
            found += found * crosses  # inside a node rails and leaves do not matter
        return np.asarray(found)

    @property
    def links(self) -> tuple[Link, Link, Link]:
        """Constants of the links inside a node, between nodes, and through the spine."""
        launch = self.message_launch_s
        latency = self.latency_s if self.inter_latency_s is None else self.inter_latency_s
        # The last port of a node may serve fewer devices; it is no slower for that.
        sharing = min(self.devices_per_nic, self.devices_per_node)
        spine = self.inter_bytes_per_s
        if self.spine_bytes_per_s is not None:
            spine = min(spine, self.spine_bytes_per_s)
        return (
            Link(self.intra_bytes_per_s, self.latency_s, launch),
            Link(self.inter_bytes_per_s * sharing, latency, launch),
            Link(spine * sharing, latency, launch),
        )

    def link(self, *, is_inter: bool) -> Link:
        """Return the constants of the links inside a node, or of those between nodes."""
        return self.links[int(is_inter)]

    def to_json(self) -> dict[str, Any]:
        """Return the constants as a JSON object; `Any`: numbers, texts and lists.

        Fields that are not in `FIRST_FIELDS` are left out at their defaults: files and digests that
        were made before these fields existed stay valid.
        """
        return _stated(self)

    def attention_flops_per_s(self, *, is_backward: bool) -> float:
        """Compute the attention FLOPs per second of a device in one direction."""
        if is_backward and self.backward_flops_per_s is not None:
            return self.backward_flops_per_s
        return self.flops_per_s


RATES = tuple(f.name for f in fields(Cluster) if f.name.endswith("_per_s"))
"""Constants that are bytes or FLOPs per second."""
OVERHEADS = tuple(f.name for f in fields(Cluster) if f.name.endswith("_s") and f.name not in RATES)
"""Constants that are seconds."""
CONSTANTS_OF_CAUSE: Mapping[str, tuple[str, ...]] = {
    "links": ("intra_bytes_per_s", "inter_bytes_per_s", "spine_bytes_per_s"),
    "latency": ("latency_s", "inter_latency_s", "message_launch_s"),
    "launches": ("kernel_launch_s", "pass_s", "host_kernel_s", "host_message_s"),
    # One multiprocessor runs its CTAs one by one, so that no wave is half empty.
    "waves": ("sms", "comm_sms", "cta_keys"),
    "tiles": ("kernel_tile",),
}
"""Constants that have no effect while a cause of a plan's time is free (`causes.alternatives`)."""
CONSTANTS_OF_WORK: Mapping[str, tuple[str, ...]] = {
    "attention forward": ("flops_per_s", "kernel_launch_s"),
    "attention backward": ("backward_flops_per_s", "kernel_launch_s"),
    "reductions": ("copy_bytes_per_s", "kernel_launch_s"),
    "host": ("pass_s", "host_kernel_s", "host_message_s"),
    "messages through the spine": ("spine_bytes_per_s", "inter_latency_s", "message_launch_s"),
    "messages between nodes": ("inter_bytes_per_s", "inter_latency_s", "message_launch_s"),
    "messages inside nodes": ("intra_bytes_per_s", "latency_s", "message_launch_s"),
}
"""Constants that can make each class of work slower, in the order in which they explain a run.

Messages wait for kernels, so kernels come first. Of two that explain as much the first is taken.
"""
FIRST_FIELDS = frozenset({
    "q_heads", "kv_heads", "head_dim", "dtype_bytes",
    "nodes", "devices_per_node", "intra_bytes_per_s", "inter_bytes_per_s", "latency_s",
    "flops_per_s", "memory_bytes", "name", "source", "inter_latency_s", "devices_per_nic",
    "backward_flops_per_s", "kernel_tile", "kernel_launch_s", "message_launch_s",
    "copy_bytes_per_s",
})  # fmt: skip
"""Fields that all files contain; they contain later ones only where these are not the default."""


def _stated(record: ModelShape | Cluster) -> dict[str, Any]:
    """Return the fields that files contain, as a JSON object; `Any`: numbers, texts and lists."""
    given = {f.name for f in fields(record) if getattr(record, f.name) != f.default}
    return {k: v for k, v in asdict(record).items() if k in FIRST_FIELDS or k in given}


def devices_of_json(value: object) -> tuple[tuple[float, ...], ...]:
    """Read `Cluster.devices` from lists of lists."""
    if not isinstance(value, list) or not all(isinstance(node, list) for node in value):
        raise ClusterError(
            "Cluster.devices: expected for each node a list of the rates of its devices, such as "
            f"[[1, 1], [1, 0.8]], got {value!r:.60}",
            "devices",
        )
    return tuple(map(tuple, value))


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise ClusterError(f"Cluster.{name}: expected {expected}, got {got!r}", name)


def _check_count(name: str, value: object, most: int, least: int = 1) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    _require(is_count, name, f"a whole number {least} to {most}", value)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ClusterError(
            f"Cluster.{name}: expected one of {', '.join(choices)}, got {value!r:.60}", name
        )


def _check_rate(name: str, value: object) -> None:
    is_rate = _is_number(value) and 0 < value <= MOST_RATE
    _require(is_rate, name, f"more than 0 and at most {MOST_RATE:g} per second", value)


def _check_overhead(name: str, value: object) -> None:
    is_overhead = _is_number(value) and 0 <= value <= MOST_OVERHEAD_S
    _require(is_overhead, name, f"0 to {MOST_OVERHEAD_S:g} seconds", value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
