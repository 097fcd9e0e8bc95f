from .assembly import assemble
from .batch_report import BatchFigures, figures_of
from .batches_file import read_batches
from .buffers import accumulator_bytes, receive_buffer_bytes, receive_rows
from .build import build_plan
from .causes import CAUSE_RULE, Explanation, TimeParts, explain_difference, split_time
from .cluster import BACKWARD_FLOPS_RATIO, Cluster, Link, ModelShape
from .cluster_file import (
    PRESETS,
    ClusterFile,
    find_cluster,
    format_cluster,
    preset,
    preset_file,
    read_cluster,
    write_cluster,
)
from .comparison import Difference, compare_figures
from .compile_clock import compile_seconds, stopwatch
from .config import PlanConfig
from .cost_model import link_seconds, reduction_seconds, tile_seconds, workload_seconds
from .cuts import choose_block_size, cut_blocks, cut_stack
from .divisions import make_schedule, predict_placement
from .errors import BufferLimitError, ClusterError, PlanError, PlanFileError
from .fingerprint import digest
from .head_groups import message_names, possible_groups, tall
from .hypergraph import Hypergraph, build_hypergraph
from .lower_bounds import Bounds, DirectionBounds, bound_ratios, bounds
from .partitioning import PARTITIONERS, place, static_layouts
from .perfetto import to_perfetto
from .placement import Partitioner, Placement
from .plan import (
    Attention,
    Blocks,
    CommLaunch,
    CommWait,
    Copy,
    DeviceProgram,
    Direction,
    Instruction,
    Plan,
    Provenance,
    Reduction,
    Tiles,
    TransferKind,
    Transfers,
)
from .plan_file import PlanFile, read_plan, write_plan
from .plan_part import PlanPart, decode_part, encode_parts
from .plan_stack import PlanStack, build_stack
from .report import PlanMetrics, measure
from .schedule import Division, Schedule
from .simulator import Prediction, predict, simulate
from .static_rivals import best_static, over_caps
from .timing import Timings, measure_trace
from .trace import LANES, Lane, Source, Trace
from .validation import validate
from .workload import Workload, build_workload

__all__ = [
    "BACKWARD_FLOPS_RATIO",
    "CAUSE_RULE",
    "LANES",
    "PARTITIONERS",
    "PRESETS",
    "Attention",
    "BatchFigures",
    "Blocks",
    "Bounds",
    "BufferLimitError",
    "Cluster",
    "ClusterError",
    "ClusterFile",
    "CommLaunch",
    "CommWait",
    "Copy",
    "DeviceProgram",
    "Difference",
    "Direction",
    "DirectionBounds",
    "Division",
    "Explanation",
    "Hypergraph",
    "Instruction",
    "Lane",
    "Link",
    "ModelShape",
    "Partitioner",
    "Placement",
    "Plan",
    "PlanConfig",
    "PlanError",
    "PlanFile",
    "PlanFileError",
    "PlanMetrics",
    "PlanPart",
    "PlanStack",
    "Prediction",
    "Provenance",
    "Reduction",
    "Schedule",
    "Source",
    "Tiles",
    "TimeParts",
    "Timings",
    "Trace",
    "TransferKind",
    "Transfers",
    "Workload",
    "accumulator_bytes",
    "assemble",
    "best_static",
    "bound_ratios",
    "bounds",
    "build_hypergraph",
    "build_plan",
    "build_stack",
    "build_workload",
    "choose_block_size",
    "compare_figures",
    "compile_seconds",
    "cut_blocks",
    "cut_stack",
    "decode_part",
    "digest",
    "encode_parts",
    "explain_difference",
    "figures_of",
    "find_cluster",
    "format_cluster",
    "link_seconds",
    "make_schedule",
    "measure",
    "measure_trace",
    "message_names",
    "over_caps",
    "place",
    "possible_groups",
    "predict",
    "predict_placement",
    "preset",
    "preset_file",
    "read_batches",
    "read_cluster",
    "read_plan",
    "receive_buffer_bytes",
    "receive_rows",
    "reduction_seconds",
    "simulate",
    "split_time",
    "static_layouts",
    "stopwatch",
    "tall",
    "tile_seconds",
    "to_perfetto",
    "validate",
    "workload_seconds",
    "write_cluster",
    "write_plan",
]
