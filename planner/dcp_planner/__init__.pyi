from .batches.report_file import read_batches
from .compile_clock import compile_seconds, stopwatch
from .errors import BufferLimitError, ClusterError, PlanError, PlanFileError
from .model.cluster import BACKWARD_FLOPS_RATIO, Cluster, ModelShape
from .model.cluster_file import (
    PRESETS,
    find_cluster,
    format_cluster,
    preset,
    read_cluster,
    write_cluster,
)
from .model.config import PlanConfig
from .model.cost_model import tile_seconds
from .model.cuts import choose_block_size, cut_blocks, cut_stack
from .model.workload import Direction
from .plan.build import build_plan, build_stack
from .plan.file import decode_plan, encode_plan, read_plan, write_plan
from .plan.part import PlanPart, decode_part, encode_parts
from .plan.validation import validate
from .report.bounds import bound_ratios
from .report.causes import CAUSE_RULE, Explanation, TimeParts, explain_difference, split_time
from .report.comparison import Difference, compare_figures
from .report.figures import BatchFigures, figures_of
from .report.static_rivals import best_static, over_caps
from .search.partitioners import PARTITIONERS, static_layouts
from .simulation.event_names import message_names, wait_name
from .simulation.perfetto import to_perfetto
from .simulation.simulator import predict, simulate
from .simulation.trace import EVENT_KINDS, LANES, EventKind, Lane, Source, Trace
from .tables.buffers import accumulator_bytes, receive_buffer_bytes
from .tables.head_groups import expand_head_groups
from .tables.metrics import PlanMetrics, measure
from .tables.plan import (
    Attention,
    Blocks,
    CommLaunch,
    CommWait,
    Copy,
    Instruction,
    Plan,
    Provenance,
    Reduction,
    Tiles,
    TransferKind,
)
from .tables.programs import digest
from .workers.pool import WorkerPool
from .workers.process import WorkerProgram
from .workers.worker import TaskError, Worker, WorkerLost, WorkerOverdue

__all__ = [
    "BACKWARD_FLOPS_RATIO",
    "CAUSE_RULE",
    "EVENT_KINDS",
    "LANES",
    "PARTITIONERS",
    "PRESETS",
    "Attention",
    "BatchFigures",
    "Blocks",
    "BufferLimitError",
    "Cluster",
    "ClusterError",
    "CommLaunch",
    "CommWait",
    "Copy",
    "Difference",
    "Direction",
    "EventKind",
    "Explanation",
    "Instruction",
    "Lane",
    "ModelShape",
    "Plan",
    "PlanConfig",
    "PlanError",
    "PlanFileError",
    "PlanMetrics",
    "PlanPart",
    "Provenance",
    "Reduction",
    "Source",
    "TaskError",
    "Tiles",
    "TimeParts",
    "Trace",
    "TransferKind",
    "Worker",
    "WorkerLost",
    "WorkerOverdue",
    "WorkerPool",
    "WorkerProgram",
    "accumulator_bytes",
    "best_static",
    "bound_ratios",
    "build_plan",
    "build_stack",
    "choose_block_size",
    "compare_figures",
    "compile_seconds",
    "cut_blocks",
    "cut_stack",
    "decode_part",
    "decode_plan",
    "digest",
    "encode_parts",
    "encode_plan",
    "expand_head_groups",
    "explain_difference",
    "figures_of",
    "find_cluster",
    "format_cluster",
    "measure",
    "message_names",
    "over_caps",
    "predict",
    "preset",
    "read_batches",
    "read_cluster",
    "read_plan",
    "receive_buffer_bytes",
    "simulate",
    "split_time",
    "static_layouts",
    "stopwatch",
    "tile_seconds",
    "to_perfetto",
    "validate",
    "wait_name",
    "write_cluster",
    "write_plan",
]
