"""The cluster of batches where the user names none: the machine that these ranks compute on."""

import logging

import torch
import torch.distributed as dist

from dcp_planner import Cluster
from dcp_planner.model import describe_own, gpus_here, own_cluster

logger = logging.getLogger(__name__)


def cluster_of_ranks(ranks: int, group: dist.ProcessGroup | None = None) -> Cluster:
    """Return one node with a device for each rank, with the preset of their GPUs, or of CPUs."""
    gpus = _gpus_of(group)
    cluster, machine = own_cluster(ranks, gpus), describe_own(gpus)
    if machine != cluster.name:
        logger.warning(
            "no preset describes %s: batches are planned for %s; measure it with `dcpm calibrate "
            "--device cuda --out mine.toml`, and give Planning(cluster=find_cluster('mine.toml'))",
            machine,
            cluster.name,
        )
    return cluster


def machine_name(*, on_gpu: bool) -> str:
    """Name the machine that computed, as `dcp_planner.model.describe_own` does."""
    return describe_own(_names() if on_gpu else ())


def _gpus_of(group: dist.ProcessGroup | None) -> tuple[str, ...]:
    """Return the names of the GPUs that compute for a group; none where it has no NCCL."""
    if not torch.cuda.is_available():
        return ()
    if dist.is_initialized():
        backends = dict(part.split(":") for part in dist.get_backend_config(group).split(","))
        if backends.get("cuda") != "nccl":
            return ()
    return _names()


def _names() -> tuple[str, ...]:
    return gpus_here() or (torch.cuda.get_device_name(),)  # some containers hide the drivers' files
