"""The machine that this process runs on, as a preset: the default where nobody names a cluster.

A prediction for another machine says nothing about this one, so GPUs are recognised by their names.
Drivers tell these in files. Asking the GPUs themselves would start CUDA in a process that may still
fork.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from dcp_planner.model.cluster import Cluster
from dcp_planner.model.cluster_file import PRESETS, preset

CPU = "cpu-gloo"
"""Preset of machines without GPUs."""
UNKNOWN_GPU = "a100-p4de"
"""Preset for GPUs that no preset describes."""

_GPUS = {"A100": "a100-p4de", "H100": "h100-dgx", "H200": "h200-dgx", "B200": "b200-dgx",
         "GB200": "gb200-nvl72", "MI300X": "mi300x"}  # fmt: skip
# /proc/driver/nvidia/gpus/<bus>/information has a line "Model: NVIDIA H100 80GB HBM3";
# amdgpu gives a card's name in a file of its own.
_NVIDIA, _AMD = "proc/driver/nvidia/gpus/*/information", "sys/class/drm/card*/device/product_name"
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)


def gpus_here(
    root: str | Path = "/", environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return the names of this machine's GPUs that are not hidden, as their drivers tell them."""
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return ()
    texts = [(path, _read(path)) for name in (_NVIDIA, _AMD) for path in Path(root).glob(name)]
    found = [
        _MODEL.findall(text) if path.name == "information" else [text.strip()]
        for path, text in sorted(texts)
    ]
    return tuple(name for names in found for name in names if name)


def preset_of_gpu(name: str) -> str | None:
    """Return the preset that describes a GPU, ``None`` if none does."""
    words = re.split(r"[^A-Z0-9]+", name.upper())
    return next((known for gpu, known in _GPUS.items() if gpu in words), None)


def own_cluster(devices: int | None = None, gpus: tuple[str, ...] | None = None) -> Cluster:
    """Return this machine as a node of its GPUs, or of the devices of the preset `cpu-gloo`."""
    gpus = gpus_here() if gpus is None else gpus
    if not gpus:
        return preset(CPU, 1, devices)
    return preset(preset_of_gpu(gpus[0]) or UNKNOWN_GPU, 1, devices or len(gpus))


def describe_own(gpus: tuple[str, ...] | None = None) -> str:
    """Name this machine: the preset of its GPUs or CPU, or the GPU that no preset describes."""
    gpus = gpus_here() if gpus is None else gpus
    return (preset_of_gpu(gpus[0]) or gpus[0]) if gpus else CPU


def is_of_another_machine(cluster: str, machine: str) -> bool:
    """Return whether times for a cluster cannot be compared with times of a machine.

    They can where the cluster was measured or written by somebody: only presets name machines.
    """
    return cluster in PRESETS and cluster != machine


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # a card without a name
        return ""
