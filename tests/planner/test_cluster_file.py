import json
import os
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcp_dsl import printable
from dcp_planner import Cluster, ClusterError, find_cluster, preset, write_cluster
from dcp_planner.model import PRESETS
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
        ("flops_per_s = 1e12", "flops_per_s = -3", ":5: Cluster.flops_per_s: expected more than 0"),
        ("flops_per_s = 1e12", "flops_per_s = nan", "got nan"),
        ("flops_per_s = 1e12", "flops_per_s = inf", "at most 1e+20 per second, got inf"),
        ("latency_s = 1e-6", "latency_s = -1e-6", ":8: Cluster.latency_s: expected 0 to 3600"),
        ("latency_s = 1e-6", 'latency_s = "1 us"', "got '1 us'"),
        ("nodes = 2", "nodes = true", ":3: Cluster.nodes: expected a whole number"),
        ("nodes = 2", "nodes = 2.5", "got 2.5"),
        ("nodes = 2", "nodes = 1000000000000", ":3: Cluster.nodes: expected a whole number 1 to"),
        ("nodes = 2", "nodse = 2", ":3: unknown key 'nodse'; did you mean `nodes`?"),
        ("nodes = 2", f"nodes = 0x{'f' * 4000}", "expected TOML, got: Exceeds the limit"),
        ("nodes = 2\n", "", "nodes missing"),
        ("memory_bytes = 1_000_000", "memory_bytes = 1.5", "got 1.5"),
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


def test_the_documented_constants_are_those_of_the_presets():
    text = (Path(__file__).resolve().parents[2] / "docs" / "clusters.md").read_text()
    table = text.partition("| | a100-p4de |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = {cells[1].strip(): cells[2:-1] for cells in (line.split("|") for line in table)}
    constants = {f.name for f in fields(Cluster)} - IDENTITY - SHAPE_OF_MACHINE
    assert set(rows) == constants
    for name, cells in rows.items():
        for cell, preset_name in zip(cells, PRESETS, strict=True):
            value = getattr(preset(preset_name), name)
            shown = (
                "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
            )
            assert cell.strip() == shown, (name, preset_name)


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
