"""Clusters, shapes and choices of a run: limits of every field, and what follows from them."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from dcp_planner import Cluster, ClusterError, ModelShape, PlanConfig, PlanError
from dcp_planner.model.cluster import devices_of_json
from dcp_planner.model.cluster_file import LIMIT_BYTES, format_cluster, parse_cluster, read_cluster

BEYOND = math.nextafter
EVERY = Cluster(
    2, 4, intra_bytes_per_s=2e11, inter_bytes_per_s=5e9, latency_s=1e-6, flops_per_s=1e14,
    memory_bytes=10**10, name="every", source="by hand", inter_latency_s=2e-6, devices_per_nic=2,
    backward_flops_per_s=9e13, kernel_tile=64, kernel_launch_s=3e-6, message_launch_s=4e-6,
    copy_bytes_per_s=1e12, sms=100, cta_keys=32, kernel_schedule="split", pass_s=5e-6,
    host_message_s=6e-6, message_order="fifo", comm_sms=8, devices=((1, 1, 1, 0.8), (1, 1)),
    rails=2, nodes_per_leaf=1, spine_bytes_per_s=2.5e9,
)  # fmt: skip
"""No field has its default."""
COUNT = [1, 1 << 20], [0, -1, (1 << 20) + 1, 1.0, True, "1", None]
RATE = [1e-300, 1, 1e20], [0, -1.0, BEYOND(1e20, 1e21), math.nan, True, "1"]
SECONDS = [0, 0.0, 3600], [-1e-300, BEYOND(3600.0, 4e3), math.nan, True, "1"]
CLUSTER = {
    "nodes": ([1, 1 << 16], [0, 1.0, True, (1 << 16) + 1, (1 << 20) + 1]),
    "devices_per_node": ([1, 1 << 16], [0, (1 << 16) + 1, (1 << 20) + 1]),
    "devices_per_nic": COUNT, "rails": COUNT,
    "nodes_per_leaf": ([None, *COUNT[0]], COUNT[1][:-1]),
    "kernel_tile": ([1, 1 << 16], [0, (1 << 16) + 1, None]),
    "memory_bytes": ([1, int(1e20)], [0, int(1e20) + 1, 1.0]),
    "sms": ([1, 1 << 14], [0, (1 << 14) + 1]),
    "cta_keys": ([0, 1 << 16], [-1, (1 << 16) + 1, 0.0]),
    "comm_sms": ([0, 1 << 14], [-1, (1 << 14) + 1]),
    "intra_bytes_per_s": (RATE[0], [*RATE[1], None]),
    "inter_bytes_per_s": RATE, "flops_per_s": RATE,
    "backward_flops_per_s": ([None, *RATE[0]], RATE[1]),
    "copy_bytes_per_s": ([None, *RATE[0]], RATE[1]),
    "spine_bytes_per_s": ([None, *RATE[0]], RATE[1]),
    "latency_s": (SECONDS[0], [*SECONDS[1], None]),
    "inter_latency_s": ([None, *SECONDS[0]], SECONDS[1]),
    "kernel_launch_s": SECONDS, "message_launch_s": SECONDS, "pass_s": SECONDS,
    "host_message_s": SECONDS,
    "kernel_schedule": (["list", "persistent", "split"], ["", "any", None]),
    "message_order": (["any", "fifo", "grouped"], ["list", None]),
}  # fmt: skip
TOLERANCE = [0, 0.0, 1e6], [-1e-300, BEYOND(1e6, 2e6), math.nan]
CONFIG = {
    "divisions": ([2, 1024, "auto", np.int64(3)], [1, 1025, True, 2.0, "2", "all", None]),
    "head_groups": ([1, 256, "auto"], [0, 257, True, 1.0, "2", None, "all"]),
    "memory_limit_bytes": ([None, 0, 1 << 60], [-1]),
    "budget": (["fast", "balanced"], ["best"]),
    "objective": (["time", "bytes", "balance", "memory"], ["speed"]),
    "compute_tolerance": TOLERANCE, "token_tolerance": TOLERANCE,
    "token_seconds": ([0, 86_400], [-1e-300, BEYOND(86_400.0, 1e5)]),
    "routing": (["direct", "node"], ["ring"]),
    "partials": (["auto", "float32", "input"], ["float16"]),
    "seed": ([0, 2**31 - 1], [-1, 2**31]),
    "time_limit_s": ([1e-300, 86_400], [0, -1.0, BEYOND(86_400.0, 1e5)]),
}  # fmt: skip
SHAPE = {
    **{name: ([1, 8], [0, -1]) for name in ("q_heads", "kv_heads", "head_dim", "dtype_bytes")},
    "kv_heads ": ([2, 4], [3, 16]),  # of 8 heads
    "head_dim ": ([1 << 20], [(1 << 20) + 1]),  # 16 bytes each: 16 MiB
}
DEFAULTS = {Cluster: {"devices_per_node": 1}, PlanConfig: {}, ModelShape: {"kv_heads": 1}}


@pytest.mark.parametrize(
    ("kind", "edges", "error"),
    [
        (Cluster, CLUSTER, ClusterError),
        (PlanConfig, CONFIG, PlanError),
        (ModelShape, SHAPE, ClusterError),
    ],
)
def test_fields_have_limits(kind, edges, error, snapshots):
    texts = {}
    for title, (allowed, refused) in edges.items():
        name, said = title.strip(), []
        for value in allowed:
            assert getattr(kind(**DEFAULTS[kind] | {name: value}), name) == value
        for value in refused:
            with pytest.raises(error) as caught:
                kind(**DEFAULTS[kind] | {name: value})
            said.append(f"{value!r}: {caught.value}")
            assert getattr(caught.value, "key", name) in (name, "nodes")
        texts[name + (", with others" if name != title else "")] = "\n".join(said)
    snapshots.check(f"limits_of_{kind.__name__}", texts)


def test_devices_that_communicate_leave_one_multiprocessor_to_compute():
    assert Cluster(sms=2, comm_sms=1).comm_sms == 1
    with pytest.raises(ClusterError, match="comm_sms: expected a whole number 0 to 3, got 4"):
        Cluster(sms=4, comm_sms=4)


@pytest.mark.parametrize(
    ("nodes", "per_node", "devices", "says"),
    [
        (1, 2, ((0.001, 1000.0),), ""),
        (2, 2, ((1,), (1, 0.5)), ""),
        (1, 2, ((0.000999, 1.0),), "relative rates of 0.001 to 1000, got 0.000999"),
        (1, 2, ((1.0, 1000.1),), "relative rates of 0.001 to 1000, got 1000.1"),
        (1, 1, ((True,),), "got True"),
        (1, 1, ((),), "at least one in each node"),
        (2, 2, ((1, 0.5),), "has 1 nodes of at most 2 devices, expected `nodes` = 2 and"),
        (1, 3, ((1, 0.5),), "`devices_per_node` = 3"),
        (1, (1 << 16) + 1, ((0.5,) * ((1 << 16) + 1),), "expected 1 to 65536 devices"),
        (1, 1 << 16, ((0.5,) * (1 << 16),), ""),
    ],
)
def test_devices_are_rates_of_all_nodes(nodes, per_node, devices, says):
    if not says:
        made = Cluster(nodes, per_node, devices=devices)
        assert made.devices == devices
        assert all(type(speed) is float for node in made.devices for speed in node)
        return
    with pytest.raises(ClusterError, match=r"Cluster\.devices: ") as caught:
        Cluster(nodes, per_node, devices=devices)
    assert says in str(caught.value)
    assert caught.value.key == "devices"


@pytest.mark.parametrize("value", [3, "12", None, [1, 1], [[1], 2], {}])
def test_devices_in_a_file_are_lists_of_lists(value):
    assert devices_of_json([[1, 2], []]) == ((1, 2), ())
    with pytest.raises(ClusterError, match="expected for each node a list") as caught:
        devices_of_json(value)
    assert caught.value.key == "devices"


def test_zero_is_one_number_and_so_are_equal_devices():
    assert json.dumps(Cluster(latency_s=0, flops_per_s=10**12).to_json()) == json.dumps(
        Cluster(latency_s=0.0, flops_per_s=1e12, devices=()).to_json()
    )
    assert Cluster(1, 2, devices=((1, 1),)).devices == ()
    assert Cluster(1, 2, devices=((2, 2),)).devices == ((2.0, 2.0),)


def told(cluster):
    """Describe the ways between all devices, and their rates."""
    every = np.arange(cluster.num_devices)
    ways = [cluster.link_class(np.full_like(every, d), every) for d in every]
    rows = "\n".join("".join(map(str, way)) for way in ways)
    links = "\n".join(
        f"{link.bytes_per_s:g} bytes/s, {link.latency_s:g} s, {link.launch_s:g} s, "
        f"1 MB in {link.busy_s(1e6):g} s"
        for link in cluster.links
    )
    assert cluster.link(is_inter=False) == cluster.links[0]
    assert cluster.link(is_inter=True) == cluster.links[1]
    return (
        f"{cluster.num_devices} devices, nodes at {cluster.node_ptr.tolist()} are "
        f"{cluster.node_of_device.tolist()}, ports {cluster.nic_of_device.tolist()}\n"
        f"speed {cluster.speed_of_device.tolist()}\n"
        f"work {[round(float(w), 4) for w in cluster.work_of_device]}\n{rows}\n{links}\n"
        f"{cluster.attention_flops_per_s(is_backward=False):g} and "
        f"{cluster.attention_flops_per_s(is_backward=True):g} FLOP/s"
    )


def test_ways_between_devices(snapshots):
    clusters = {
        "one device": Cluster(1, 1),
        "two nodes of three, ports of two": Cluster(2, 3, devices_per_nic=2, inter_latency_s=1.0),
        "every field": EVERY,
        "three rails": Cluster(2, 4, rails=3),
        "rails of shared ports": Cluster(2, 4, rails=2, devices_per_nic=2, spine_bytes_per_s=1e9),
        "leaves of two nodes, a wide spine": Cluster(
            5, 1, nodes_per_leaf=2, spine_bytes_per_s=1e11, message_launch_s=1e-6
        ),
    }
    snapshots.check("ways_between_devices", {name: told(c) for name, c in clusters.items()})


def test_files_of_clusters(snapshots, tmp_path):
    sources = {"rails": 'a "rail"\x7f', "nodes": "counted"}
    texts = {
        "every field": format_cluster(EVERY, sources),
        "the default": format_cluster(Cluster(), {}),
    }
    snapshots.check("files_of_clusters", texts)
    assert parse_cluster(texts["every field"], "x") == parse_cluster(
        json.dumps(EVERY.to_json() | {"sources": sources}), "x", is_json=True
    )
    path = tmp_path / "long.toml"
    text = texts["the default"]
    path.write_text(text + "#" * (LIMIT_BYTES - len(text)))
    assert read_cluster(path).cluster == Cluster()
    with path.open("a") as file:
        file.write("#")
    with pytest.raises(ClusterError, match=f"expected at most 65536 bytes, got {LIMIT_BYTES + 1}"):
        read_cluster(path)


def test_a_cluster_without_a_name_has_that_of_its_file(tmp_path):
    text = "".join(
        line + "\n" for line in format_cluster(Cluster(), {}).splitlines()
        if not line.startswith(("name", "source", "schema"))
    )  # fmt: skip
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert read_cluster(path).cluster == replace(Cluster(), name="mine", source=str(path))
    assert parse_cluster(text, "here").cluster.name == "unnamed"


def test_a_wrong_value_in_json_is_found_by_its_line():
    values = {"nodes": 0} | Cluster().to_json() | {"nodes": 0}
    for indent, line in ((None, 1), (1, 2)):
        with pytest.raises(ClusterError, match=f"^c:{line}: Cluster.nodes: expected a") as caught:
            parse_cluster(json.dumps(values, indent=indent), "c", is_json=True)
        assert caught.value.key == "nodes"
    with pytest.raises(ClusterError, match=r"^c: expected JSON"):
        parse_cluster("{'nodes'\n: 0}", "c", is_json=True)


def test_bytes_of_a_shape_by_hand(snapshots):
    names = (
        "float32_partials", "partials", "partial_bytes", "q_bytes", "kv_bytes", "dq_bytes",
        "dkv_bytes", "out_bytes", "q_backward_bytes", "flops_per_pair", "round_trip_bytes",
    )  # fmt: skip
    shapes = {
        "4 and 2 heads of 16, 16 bits": ModelShape(4, 2, 16),
        "the same, partial results in 32 bits": ModelShape(4, 2, 16, 2, float32_partials=True),
        "3 and 1 heads of 5, 32 bits": ModelShape(3, 1, 5, 4, float32_partials=True),
    }
    texts = {
        title: f"{json.dumps(shape.to_json())}\n"
        + "\n".join(f"{name} {getattr(shape, name)}" for name in names)
        for title, shape in shapes.items()
    }
    snapshots.check("bytes_of_shapes", texts)
    first, second, third = shapes.values()
    assert first.is_same_model(second)
    assert second.is_same_model(first)
    assert not first.is_same_model(replace(first, head_dim=8))
    assert not first.is_same_model(third)
