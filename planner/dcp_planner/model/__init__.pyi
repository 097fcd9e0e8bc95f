from .cluster import BACKWARD_FLOPS_RATIO, MESSAGE_ORDERS, MessageOrder
from .cluster_file import PRESETS, format_cluster
from .cost_model import tile_seconds

__all__ = [
    "BACKWARD_FLOPS_RATIO",
    "MESSAGE_ORDERS",
    "PRESETS",
    "MessageOrder",
    "format_cluster",
    "tile_seconds",
]
