"""Network namespaces that emulate a cluster: one per device, with links shaped to its ports.

Root on Linux, with `ip` and `tc` (package iproute2). A device has one address and two interfaces: a
port into its node's bridge and one into the network's. Token buckets at both ends of each hold what
it sends, and what it receives, to the cluster's rate divided by the dilation. The kernel of most
containers has no netem, so latencies are left to the receiver.

Neighbours are permanent: the kernel learns at most 1,024 for all namespaces together, and 32
devices need 992 of them.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from dcp_planner import Cluster

INTERFACE = "nic"
"""Has the address of a device, which it also answers to in its node; gloo is told to use it."""
MOST_BURST_S = 2e-4
LEAST_BURST, LEAST_QUEUE = 80_000, 256_000
QUEUE_S = 0.01
RTO_MS = 5
"""Least wait before lost packets are sent again; the kernel's 200 ms are long for a real rate, and
would be so times the dilation."""
_SETTINGS = ("tcp_congestion_control=reno", "tcp_slow_start_after_idle=0")
_CLONE_NEWNET = 0x40000000


def why_not() -> str:
    """Explain why this machine cannot emulate a network; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if missing:
        return f"{' and '.join(missing)} not found; install iproute2 (apt-get install iproute2)"
    done = subprocess.run(["ip", "netns", "add", "dcp-try"], capture_output=True, text=True)
    if done.returncode:
        return f"no network namespace can be made: {done.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", "dcp-try"], check=True)
    return ""


def _run(command: Sequence[str], lines: Sequence[str]) -> None:
    """Run a batch of lines with `ip` or `tc`."""
    text = "\n".join(lines)
    done = subprocess.run([*command, "-batch", "-"], input=text, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:400]}")


def _bucket(interface: str, bytes_per_s: float) -> str:
    burst = max(LEAST_BURST, int(bytes_per_s * MOST_BURST_S))
    limit = max(LEAST_QUEUE, int(bytes_per_s * QUEUE_S)) + burst
    bits = int(bytes_per_s * 8)
    return f"qdisc add dev {interface} root tbf rate {bits}bit burst {burst} limit {limit}"


@contextmanager
def network(cluster: Cluster, dilation: float) -> Iterator[list[str]]:
    """Make the namespaces of a cluster; return their names, and delete them at the end."""
    if cluster.devices_per_nic > 1 or cluster.rails > 1 or cluster.nodes_per_leaf is not None:
        raise ValueError("expected a cluster with a network port for each device and one switch")
    devices, middle = range(cluster.num_devices), f"dcp{os.getpid()}"
    names = [f"{middle}-{device}" for device in devices]
    try:
        for name in (middle, *names):
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        node = cluster.node_of_device.tolist()
        bridges = [*(f"node{n}" for n in range(cluster.nodes)), "net"]
        _run(
            ["ip", "-n", middle],
            [f"link add {name} type bridge" for name in bridges]
            + [f"link set {name} up" for name in bridges],
        )
        for device in devices:
            _add_device(cluster, dilation, (middle, names[device]), device, node)
        yield names
    finally:
        for name in (*names, middle):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _add_device(
    cluster: Cluster, dilation: float, where: tuple[str, str], device: int, node: list[int]
) -> None:
    """Link one device to both of its bridges, and tell it where the others are."""
    middle, own = where
    rates = {"nv": cluster.intra_bytes_per_s, "nic": cluster.inter_bytes_per_s}
    bridge = {"nv": f"node{node[device]}", "nic": "net"}
    outside, inside, shaped = [], ["link set lo up"], []
    for kind in ("nv", "nic"):
        port = f"{kind}{device}"
        mac = _mac(kind, device)
        outside += [
            f"link add {port} type veth peer name {kind} address {mac} netns {own}",
            f"link set {port} master {bridge[kind]}",
            f"link set {port} up",
        ]
        inside.append(f"link set {kind} up")
        shaped.append(port)
    inside.append(f"addr add {_address(device)}/32 dev {INTERFACE}")
    for other in range(len(node)):
        kind = "nv" if node[other] == node[device] else "nic"
        if other != device:
            place = f"{_address(other)} dev {kind}"
            inside.append(f"neigh add {_address(other)} lladdr {_mac(kind, other)} nud permanent "
                          f"dev {kind}")  # fmt: skip
            inside.append(f"route add {place} src {_address(device)} rto_min {RTO_MS}ms")
    _run(["ip", "-n", middle], outside)
    _run(["ip", "-n", own], inside)
    for kind in ("nv", "nic"):
        _run(["tc", "-n", own], [_bucket(kind, rates[kind] / dilation)])
        _run(["tc", "-n", middle], [_bucket(f"{kind}{device}", rates[kind] / dilation)])
    for setting in _SETTINGS:
        subprocess.run(
            ["ip", "netns", "exec", own, "sysctl", "-qw", f"net.ipv4.{setting}"],
            check=True, capture_output=True,
        )  # fmt: skip


def _address(device: int) -> str:
    return f"10.93.{device // 200}.{device % 200 + 1}"


def _mac(kind: str, device: int) -> str:
    return f"02:00:00:00:{'01' if kind == 'nv' else '02'}:{device:02x}"


def enter(name: str) -> None:
    """Move this process into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(handle, _CLONE_NEWNET):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)
    finally:
        os.close(handle)
