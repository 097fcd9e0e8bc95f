"""The cluster that a plan is made for where nobody names one: the machine that it is made on."""

from dataclasses import replace

import click.testing
import pytest

from dcp_planner import preset
from dcp_planner.commands.plan import plan
from dcp_planner.model import (
    describe_own,
    gpus_here,
    is_of_another_machine,
    own_cluster,
    own_machine,
)

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
        (
            ("NVIDIA H100 80GB HBM3",) * 2,
            "1 x 2 devices of h100-dgx",
            "2 devices of h100-dgx. Name",
        ),
        (("NVIDIA L40S",), "1 x 1 devices of a100-p4de", "no preset describes its NVIDIA L40S"),
    ],
)
def test_plan_without_a_cluster_takes_this_machine_and_says_so(
    tmp_path, monkeypatch, gpus, place, says
):
    monkeypatch.setattr(own_machine, "gpus_here", lambda: gpus)
    spec = tmp_path / "a.dcpm"
    spec.write_text("mask m = causal\n")

    def run(*options):
        found = click.testing.CliRunner().invoke(plan, [str(spec), *SAMPLE, *options])
        assert found.exit_code == 0, found.output
        return found

    found = run()
    assert place in found.stdout
    assert says in found.stderr
    # The remedy that the note offers: a cluster by its name, on any machine, without a note.
    named = run("--cluster", "h100-dgx:8x8")
    assert "8 x 8 devices of h100-dgx" in named.stdout
    assert "note: no --cluster" not in named.stderr


def test_a_model_needs_a_cluster_of_gpus_and_takes_the_one_that_the_message_offers(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(own_machine, "gpus_here", lambda: ())
    spec = tmp_path / "a.dcpm"
    spec.write_text("mask m = causal\n")
    runner, asked = click.testing.CliRunner(), [str(spec), *SAMPLE, "--model", "llama-8b"]
    refused = runner.invoke(plan, asked)
    assert "got 'cpu-gloo'; choose such a cluster (--cluster h100-dgx:1x8)" in str(
        refused.exception
    )
    assert (
        "llama-8b, all layers" in runner.invoke(plan, [*asked, "--cluster", "h100-dgx:1x8"]).stdout
    )
