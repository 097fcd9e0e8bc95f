"""Clusters in files and on the command line, and the machine that is one where nobody names it."""

import json
import os
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_runs import run
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import printable
from dcp_planner import Cluster, ClusterError, find_cluster, preset, write_cluster
from dcp_planner.commands.plan import plan
from dcp_planner.model import (
    PRESETS,
    describe_own,
    gpus_here,
    is_of_another_machine,
    own_cluster,
    own_machine,
)
from dcp_planner.model.cluster_file import parse_cluster, preset_file, read_cluster

GOOD = """schema = "dcp.cluster/1"
name = "mine"
nodes = 2
devices_per_node = 4
flops_per_s = 1e12
intra_bytes_per_s = 2e9
inter_bytes_per_s = 1e9
latency_s = 1e-6
memory_bytes = 1_000_000
"""
SIZE = "nodes = 2\ndevices_per_node = 4"
GOOD_JSON = json.dumps(tomllib.loads(GOOD))
SHAPE_OF_MACHINE = {"devices", "slow_ports", "rails", "nodes_per_leaf", "spine_bytes_per_s"}
IDENTITY = {"nodes", "devices_per_node", "name", "source"}


def written(tmp_path, text):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", PRESETS)
def test_every_constant_of_a_preset_has_a_source(name):
    file = preset_file(name)
    stated = {name for name, value in file.cluster.to_json().items() if value is not None}
    if file.cluster.backward_flops_per_s is None:
        stated.discard("backward_flops_per_s")
    assert stated - IDENTITY == set(file.sources)
    assert all(len(text) > 10 for text in (*file.sources.values(), file.cluster.source))
    assert file.cluster.name == name


@pytest.mark.parametrize("name", PRESETS)
def test_the_network_of_a_preset_is_no_faster_than_the_links_inside_a_node(name):
    cluster = preset(name)
    inside, between = (cluster.link(is_inter=side) for side in (False, True))
    assert between.bytes_per_s <= inside.bytes_per_s
    assert between.latency_s >= inside.latency_s


def test_a_file_holds_what_was_written(tmp_path):
    for name in PRESETS:
        file = preset_file(name)
        write_cluster(tmp_path / "c.toml", file.cluster, file.sources)
        assert read_cluster(tmp_path / "c.toml") == file
    assert sorted(os.listdir(tmp_path)) == ["c.toml"]


@given(
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).map(printable),
    rate=st.floats(1e-300, 1e20),
    latency=st.floats(0, 3600),
    backward=st.none() | st.floats(1e-300, 1e20),
    tile=st.integers(1, 1 << 16),
)
def test_any_cluster_survives_the_file(tmp_path_factory, name, rate, latency, backward, tile):
    cluster = replace(
        preset("h100-dgx"), name=name, source=name[::-1], flops_per_s=rate, latency_s=latency,
        backward_flops_per_s=backward, kernel_tile=tile,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("c") / "c.toml"
    write_cluster(path, cluster, {"flops_per_s": name})
    assert read_cluster(path).cluster == cluster
    assert read_cluster(path).sources == {"flops_per_s": name}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4x8", preset("a100-p4de", 4, 8)),
        ("1x3", preset("a100-p4de", 1, 3)),
        ("h100-dgx", preset("h100-dgx")),
        ("h200-dgx:8x4", preset("h200-dgx", 8, 4)),
    ],
)
def test_a_command_line_names_a_cluster(text, expected):
    assert find_cluster(text) == expected


def test_a_command_line_names_a_file_and_its_size(tmp_path):
    path = written(tmp_path, GOOD)
    assert find_cluster(str(path)).num_devices == 8
    assert find_cluster(f"{path}:3x2") == replace(
        read_cluster(path).cluster, nodes=3, devices_per_node=2
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100", "did you mean `h100-dgx`"),
        ("h100-dgx:4", "unknown cluster 'h100-dgx:4'; expected NODESxDEVICES"),
        ("0x8", "Cluster.nodes: expected a whole number 1 to 1048576, got 0"),
        ("4x-8", "unknown cluster '4x-8'"),
        ("9999999x1", "Cluster.nodes: expected a whole number"),
        ("99999999999999999999x1", "unknown cluster"),
        ("", "unknown cluster ''"),
        ("x" * 5000, "unknown cluster"),
        ("gone.toml", "gone.toml: there is no such file; write one with `dcpm calibrate"),
    ],
)
def test_a_name_that_is_no_cluster_is_refused(text, message):
    with pytest.raises(ClusterError) as caught:
        find_cluster(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("inter_bytes_per_s = 1e9", "inter_bytes_per_s = 0.0", ":7: Cluster.inter_bytes_per_s: "),
        ("latency_s = 1e-6", 'latency_s = "1 us"', "got '1 us'"),
        ("nodes = 2", "nodes = true", ":3: Cluster.nodes: expected a whole number"),
        ("nodes = 2", "nodse = 2", ":3: unknown key 'nodse'; did you mean `nodes`?"),
        ("nodes = 2", f"nodes = 0x{'f' * 4000}", "expected TOML, got: Exceeds the limit"),
        ("nodes = 2\n", "", "nodes missing"),
        (SIZE, "devices = 3", ":3: Cluster.devices: expected for each node a list"),
        (
            SIZE,
            "nodes = 2\ndevices = [[1], [1], [1]]",
            ":4: Cluster.devices: has 3 nodes of at most 1",
        ),
        ('name = "mine"', "name = 3", ":2: name: expected a text, got 3"),
        ('name = "mine"', "name = ", "expected TOML, got: Invalid value (at line 2"),
        ('"dcp.cluster/1"', '"dcp.cluster/9"', ":1: expected 'dcp.cluster/1', got 'dcp.cluster/9'"),
        ("memory_bytes = 1_000_000", "memory_bytes = 1\n[sources]\nnodez = 'x'", "key 'nodez'"),
        ("memory_bytes = 1_000_000", "memory_bytes = 1\n[sources]\nnodes = 3", "map keys to texts"),
        ("memory_bytes = 1_000_000", "memory_bytes = 1\nsources = 3", "map keys to texts"),
    ],
)
def test_a_bad_file_is_refused_by_line_and_key(tmp_path, old, new, message):
    assert old in GOOD
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ClusterError) as caught:
        read_cluster(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_a_file_lists_devices_instead_of_counting_them(tmp_path):
    path = written(tmp_path, GOOD.replace(SIZE, "devices = [[1, 1, 1], [1, 0.8]]"))
    found = read_cluster(path).cluster
    assert found.devices == ((1, 1, 1), (1, 0.8))
    assert (found.nodes, found.devices_per_node, found.num_devices) == (2, 3, 5)
    write_cluster(tmp_path / "d.toml", found, {})
    assert read_cluster(tmp_path / "d.toml").cluster == found
    with pytest.raises(ClusterError, match="its size cannot be changed"):
        find_cluster(f"{path}:2x3")


def test_a_cluster_may_be_json(tmp_path):
    path, named = tmp_path / "c.json", Cluster(name="c", flops_per_s=1e12)
    path.write_text(json.dumps(named.to_json() | {"sources": {"flops_per_s": "by hand"}}))
    assert find_cluster(str(path)) == named
    path.write_text("[1]")
    with pytest.raises(ClusterError, match="expected a JSON object"):
        read_cluster(path)


def test_a_file_that_is_none_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "large.toml").write_text("#" * (1 << 17))
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "deep.toml").write_text("a = " + "[" * 20000)
    for name, message in (
        ("pipe", "regular file"), ("large", "at most 65536 bytes"), ("bytes", "UTF-8"),
        ("deep", "expected TOML"),
    ):  # fmt: skip
        with pytest.raises(ClusterError, match=message):
            read_cluster(tmp_path / f"{name}.toml")
    with pytest.raises(ClusterError, match="regular file"):
        read_cluster(tmp_path)


def test_names_of_a_cluster_are_printed_without_orders_to_the_terminal(tmp_path):
    found = read_cluster(written(tmp_path, GOOD.replace("mine", "\\u001b[2J"))).cluster
    assert (found.name, found.source.isprintable()) == (r"\x1b[2J", True)
    lone = parse_cluster(GOOD_JSON.replace("mine", "\\ud800"), "c.json", is_json=True)
    write_cluster(tmp_path / "lone.toml", lone.cluster, {})  # UTF-8 has no half of a pair
    assert read_cluster(tmp_path / "lone.toml").cluster.name == r"\ud800"


def test_a_file_that_cannot_be_written_is_said(tmp_path):
    for path in (tmp_path / "no" / "c.toml", tmp_path):
        with pytest.raises(ClusterError, match="cannot be written"):
            write_cluster(path, Cluster(), {})
    assert os.listdir(tmp_path) == []


def test_whole_bytes_may_be_written_as_a_power_of_ten(tmp_path):
    path = written(tmp_path, GOOD.replace("1_000_000", "80e9"))
    assert json.dumps(read_cluster(path).cluster.memory_bytes) == "80000000000"


def test_numbers_of_numpy_are_written_as_numbers(tmp_path):
    cluster = replace(Cluster(), flops_per_s=np.float64(2.5e12))
    write_cluster(tmp_path / "c.toml", cluster, {})
    assert read_cluster(tmp_path / "c.toml").cluster.flops_per_s == 2.5e12


def test_the_documented_file_is_a_cluster(tmp_path):
    text = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text()
    path = written(tmp_path, text.partition("```toml\n")[2].partition("```")[0])
    assert read_cluster(path).cluster.num_devices == 16


@pytest.mark.parametrize("devices", [[], [[1.0, 1.0], [1.0, 0.5]]])
def test_devices_in_lists_make_the_same_cluster_as_in_tuples(devices):
    cluster = Cluster(2, 2, devices=devices)
    same = Cluster(2, 2, devices=tuple(map(tuple, devices)))
    assert (cluster, hash(cluster)) == (same, hash(same))
    assert cluster.to_json() == same.to_json()


SAMPLE = ["--sample", "len = 600", "--mask", "m"]


@pytest.fixture
def root(tmp_path):
    """A file system with the drivers' files of two kinds of GPUs, to be filled."""

    def fill(nvidia=(), amd=()):
        for bus, name in enumerate(nvidia):
            folder = tmp_path / f"proc/driver/nvidia/gpus/0000:{bus:02x}:00.0"
            folder.mkdir(parents=True)
            text = f"Model: \t\t {name}\nIRQ:   \t\t 16\nGPU UUID: \t GPU-00\n"
            (folder / "information").write_text(text)
        for card, name in enumerate(amd):
            folder = tmp_path / f"sys/class/drm/card{card}/device"
            folder.mkdir(parents=True)
            (folder / "product_name").write_text(f"{name}\n")
        return tmp_path

    return fill


@pytest.mark.parametrize(
    ("files", "hidden", "cluster", "machine"),
    [
        ({}, None, preset("cpu-gloo", 1, 4), "cpu-gloo"),
        ({"nvidia": ["NVIDIA A100-SXM4-80GB"] * 8}, None, preset("a100-p4de", 1, 8), "a100-p4de"),
        ({"nvidia": ["NVIDIA H100 80GB HBM3"]}, None, preset("h100-dgx", 1, 1), "h100-dgx"),
        ({"nvidia": ["NVIDIA H200"] * 2}, "0,1", preset("h200-dgx", 1, 2), "h200-dgx"),
        ({"nvidia": ["NVIDIA B200"]}, None, preset("b200-dgx", 1, 1), "b200-dgx"),
        ({"nvidia": ["NVIDIA GB200"] * 4}, None, preset("gb200-nvl72", 1, 4), "gb200-nvl72"),
        ({"amd": ["AMD Instinct MI300X OAM", ""]}, None, preset("mi300x", 1, 1), "mi300x"),
        ({"nvidia": ["NVIDIA L40S"]}, None, preset("a100-p4de", 1, 1), "NVIDIA L40S"),
        ({"nvidia": ["NVIDIA RTX A1000"]}, None, preset("a100-p4de", 1, 1), "NVIDIA RTX A1000"),
        ({"nvidia": ["NVIDIA H100 PCIe"]}, "", preset("cpu-gloo", 1, 4), "cpu-gloo"),
        ({"nvidia": ["NVIDIA H100 PCIe"]}, "-1", preset("cpu-gloo", 1, 4), "cpu-gloo"),
    ],
)  # fmt: skip
def test_gpus_are_known_by_the_names_that_their_drivers_tell(root, files, hidden, cluster, machine):
    environment = {} if hidden is None else {"CUDA_VISIBLE_DEVICES": hidden}
    gpus = gpus_here(root(**files), environment)
    assert own_cluster(gpus=gpus) == cluster
    assert own_cluster(16, gpus) == replace(cluster, devices_per_node=16)
    assert describe_own(gpus) == machine


def test_only_presets_of_other_machines_are_unlike():
    found = {
        (cluster, machine): is_of_another_machine(cluster, machine)
        for cluster in ("a100-p4de", "cpu-gloo", "calibrated-cpu")
        for machine in ("a100-p4de", "cpu-gloo", "NVIDIA L40S")
    }
    assert [pair for pair, unlike in found.items() if not unlike] == [
        ("a100-p4de", "a100-p4de"), ("cpu-gloo", "cpu-gloo"), ("calibrated-cpu", "a100-p4de"),
        ("calibrated-cpu", "cpu-gloo"), ("calibrated-cpu", "NVIDIA L40S"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gpus", "place", "says"),
    [
        ((), "1 x 4 devices of cpu-gloo", "1 x 4 devices of cpu-gloo. Name another"),
        (("NVIDIA H200",) * 2, "1 x 2 devices of h200-dgx", "2 devices of h200-dgx. Name"),
        (("NVIDIA L40S",), "1 x 1 devices of a100-p4de", "no preset describes its NVIDIA L40S"),
    ],
)
def test_plan_without_a_cluster_takes_this_machine_and_says_so(
    tmp_path, monkeypatch, gpus, place, says
):
    monkeypatch.setattr(own_machine, "gpus_here", lambda: gpus)
    (tmp_path / "a.dcpm").write_text("mask m = causal\n")
    found = run(plan, tmp_path / "a.dcpm", *SAMPLE)
    assert found.exit_code == 0, found.output
    assert place in found.stdout
    assert says in found.stderr
    # The remedy that the note offers: a cluster by its name, on any machine, without a note.
    named = run(plan, tmp_path / "a.dcpm", *SAMPLE, "--cluster", "h100-dgx:8x8")
    assert "8 x 8 devices of h100-dgx" in named.stdout
    assert "note: no --cluster" not in named.stderr


def test_a_model_needs_a_cluster_of_gpus_and_takes_the_one_that_the_message_offers(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(own_machine, "gpus_here", lambda: ())
    (tmp_path / "a.dcpm").write_text("mask m = causal\n")
    asked = plan, tmp_path / "a.dcpm", *SAMPLE, "--model", "llama-8b"
    remedy = "got 'cpu-gloo'; choose such a cluster (--cluster h100-dgx:1x8)"
    assert remedy in str(run(*asked).exception)
    assert "llama-8b, all layers" in run(*asked, "--cluster", "h100-dgx:1x8").stdout
