from .cluster import BACKWARD_FLOPS_RATIO, MessageOrder
from .cluster_file import PRESETS, format_cluster
from .cost_model import tile_seconds
from .own_machine import describe_own, gpus_here, is_of_another_machine, own_cluster

__all__ = [
    "BACKWARD_FLOPS_RATIO",
    "PRESETS",
    "MessageOrder",
    "describe_own",
    "format_cluster",
    "gpus_here",
    "is_of_another_machine",
    "own_cluster",
    "tile_seconds",
]
