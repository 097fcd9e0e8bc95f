from .head_groups import expand_head_groups
from .metrics import (
    DeviceMemory,
    PlanMetrics,
    accumulator_bytes,
    measure_memory,
    receive_buffer_bytes,
    sum_bytes_per_token,
)
from .plan import (
    GRID,
    Attention,
    Blocks,
    CommLaunch,
    CommWait,
    ComputeBlocks,
    Copy,
    Instruction,
    Reduction,
    Transfers,
)
from .programs import REDUCTION, tabulate_programs
from .visits import find_feeders, find_merges, inputs_of_results, inputs_of_tiles

__all__ = [
    "GRID",
    "REDUCTION",
    "Attention",
    "Blocks",
    "CommLaunch",
    "CommWait",
    "ComputeBlocks",
    "Copy",
    "DeviceMemory",
    "Instruction",
    "PlanMetrics",
    "Reduction",
    "Transfers",
    "accumulator_bytes",
    "expand_head_groups",
    "find_feeders",
    "find_merges",
    "inputs_of_results",
    "inputs_of_tiles",
    "measure_memory",
    "receive_buffer_bytes",
    "sum_bytes_per_token",
    "tabulate_programs",
]
