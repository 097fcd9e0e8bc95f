from .batches.report_file import read_batches
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
from .plan.file import read_plan, write_plan
from .plan.part import PlanPart, decode_part, encode_parts
from .plan.validation import validate
from .report.bounds import bound_ratios
from .report.comparison import Difference, compare_figures
from .report.figures import BatchFigures, figures_of
from .search.partitioners import PARTITIONERS
from .simulation.perfetto import to_perfetto
from .simulation.simulator import predict, simulate
from .simulation.trace import LANES, Lane, Source, Trace
from .tables.buffers import accumulator_bytes, receive_buffer_bytes
from .tables.head_groups import expand_head_groups, message_names
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

__all__ = [
    "BACKWARD_FLOPS_RATIO",
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
    "Tiles",
    "Trace",
    "TransferKind",
    "accumulator_bytes",
    "bound_ratios",
    "build_plan",
    "build_stack",
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
    "measure",
    "message_names",
    "predict",
    "preset",
    "read_batches",
    "read_cluster",
    "read_plan",
    "receive_buffer_bytes",
    "simulate",
    "tile_seconds",
    "to_perfetto",
    "validate",
    "write_cluster",
    "write_plan",
]
