from .batches.report_file import read_batches
from .errors import BufferLimitError, ClusterError, PlanError, PlanFileError
from .model.cluster import BACKWARD_FLOPS_RATIO, Cluster, Link, ModelShape
from .model.cluster_file import (
    PRESETS,
    ClusterFile,
    find_cluster,
    format_cluster,
    preset,
    preset_file,
    read_cluster,
    write_cluster,
)
from .model.config import PlanConfig
from .model.cost_model import link_seconds, reduction_seconds, tile_seconds, workload_seconds
from .model.cuts import choose_block_size, cut_blocks, cut_stack
from .model.placement import Partitioner, Placement
from .model.workload import Direction, Hypergraph, Workload, build_hypergraph, build_workload
from .plan.build import PlanStack, build_plan, build_stack
from .plan.file import PlanFile, read_plan, write_plan
from .plan.part import PlanPart, decode_part, encode_parts
from .plan.validation import validate
from .report.bounds import Bounds, DirectionBounds, bound_ratios, bounds
from .report.comparison import Difference, compare_figures
from .report.figures import BatchFigures, figures_of
from .schedule.divisions import Division, Schedule
from .schedule.emission import assemble
from .search.partitioners import PARTITIONERS, place, static_layouts
from .simulation.perfetto import to_perfetto
from .simulation.schedules import make_schedule, predict_placement
from .simulation.simulator import Prediction, predict, simulate
from .simulation.trace import LANES, Lane, Source, Timings, Trace, measure_trace
from .tables.buffers import accumulator_bytes, receive_buffer_bytes, receive_rows
from .tables.head_groups import expand_head_groups, message_names, possible_groups
from .tables.metrics import PlanMetrics, measure
from .tables.plan import (
    Attention,
    Blocks,
    CommLaunch,
    CommWait,
    Copy,
    DeviceProgram,
    Instruction,
    Plan,
    Provenance,
    Reduction,
    Tiles,
    TransferKind,
    Transfers,
)
from .tables.programs import digest

__all__ = [
    "BACKWARD_FLOPS_RATIO",
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
    "Timings",
    "Trace",
    "TransferKind",
    "Transfers",
    "Workload",
    "accumulator_bytes",
    "assemble",
    "bound_ratios",
    "bounds",
    "build_hypergraph",
    "build_plan",
    "build_stack",
    "build_workload",
    "choose_block_size",
    "compare_figures",
    "cut_blocks",
    "cut_stack",
    "decode_part",
    "digest",
    "encode_parts",
    "expand_head_groups",
    "figures_of",
    "find_cluster",
    "format_cluster",
    "link_seconds",
    "make_schedule",
    "measure",
    "measure_trace",
    "message_names",
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
    "static_layouts",
    "tile_seconds",
    "to_perfetto",
    "validate",
    "workload_seconds",
    "write_cluster",
    "write_plan",
]
