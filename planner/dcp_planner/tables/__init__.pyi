from .buffers import accumulator_bytes, receive_buffer_bytes
from .head_groups import expand_head_groups
from .memory import measure_memory
from .metrics import PlanMetrics
from .plan import (
    Attention,
    Blocks,
    CommLaunch,
    CommWait,
    ComputeBlocks,
    Copy,
    Instruction,
    Reduction,
)

__all__ = [
    "Attention",
    "Blocks",
    "CommLaunch",
    "CommWait",
    "ComputeBlocks",
    "Copy",
    "Instruction",
    "PlanMetrics",
    "Reduction",
    "accumulator_bytes",
    "expand_head_groups",
    "measure_memory",
    "receive_buffer_bytes",
]
