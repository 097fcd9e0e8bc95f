from .batches.report_file import read_batches
from .errors import BufferLimitError, ClusterError, PlanError, PlanFileError
from .jit import compile_seconds, stopwatch
from .model.cluster import Cluster, ModelShape
from .model.cluster_file import find_cluster, preset, write_cluster
from .model.config import PlanConfig
from .model.cuts import cut_blocks, cut_stack
from .model.problem import Direction
from .plan.block_size import fastest_block_size
from .plan.build import build_front, build_plan, build_stack
from .plan.export import export_plan
from .plan.file import read_meta, read_plan, write_plan
from .plan.validation import validate
from .search.partitioners import PARTITIONERS, static_layouts
from .simulation.perfetto import to_perfetto
from .simulation.simulator import predict, simulate
from .simulation.trace import LANES, Source, Trace
from .tables.metrics import measure
from .tables.plan import Plan, Provenance, TransferKind
from .tables.programs import digest

__all__ = [
    "LANES",
    "PARTITIONERS",
    "BufferLimitError",
    "Cluster",
    "ClusterError",
    "Direction",
    "ModelShape",
    "Plan",
    "PlanConfig",
    "PlanError",
    "PlanFileError",
    "Provenance",
    "Source",
    "Trace",
    "TransferKind",
    "build_front",
    "build_plan",
    "build_stack",
    "compile_seconds",
    "cut_blocks",
    "cut_stack",
    "digest",
    "export_plan",
    "fastest_block_size",
    "find_cluster",
    "measure",
    "predict",
    "preset",
    "read_batches",
    "read_meta",
    "read_plan",
    "simulate",
    "static_layouts",
    "stopwatch",
    "to_perfetto",
    "validate",
    "write_cluster",
    "write_plan",
]
