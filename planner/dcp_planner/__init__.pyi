from .build import PlanConfig, build_plan
from .cluster import BACKWARD_FLOPS_RATIO, Cluster, ModelShape
from .hypergraph import Hypergraph, build_hypergraph
from .placement import PARTITIONERS, Placement, place
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
from .plan_file import PlanFile, PlanFileError, read_plan, write_plan
from .report import PlanMetrics, measure
from .schedule import Division, Schedule, make_schedule
from .simulator import simulate
from .trace import LANES, Lane, Source, Trace
from .validation import PlanError, validate
from .workload import Workload, build_workload
