from .attention import DCPAttn
from .data.choices import LookAhead, Packing, Planning, RowRules
from .data.local_data import LocalData
from .data.look_ahead import PlanningMetrics
from .data.screening import Screening
from .dataloader import DCPDataloader
from .errors import RunError
from .executor import DCPExecutor, PreparedPlan
from .flex_mask import flex_block_mask, flex_mask_mod
from .gradients import sum_gradients
from .huggingface import register_dcp
from .kernels.choice import KernelChoice, choose_kernel
from .launcher import RunConfig, RunResult, open_world, run_plan
from .layer_plans import LayerPlans
from .loss import next_token_loss
from .stacked_plans import BatchPlan, StackedPlans
from .verification import TensorError
from .world import ProcessWorld

__all__ = [
    "BatchPlan",
    "DCPAttn",
    "DCPDataloader",
    "DCPExecutor",
    "KernelChoice",
    "LayerPlans",
    "LocalData",
    "LookAhead",
    "Packing",
    "Planning",
    "PlanningMetrics",
    "PreparedPlan",
    "ProcessWorld",
    "RowRules",
    "RunConfig",
    "RunError",
    "RunResult",
    "Screening",
    "StackedPlans",
    "TensorError",
    "choose_kernel",
    "flex_block_mask",
    "flex_mask_mod",
    "next_token_loss",
    "open_world",
    "register_dcp",
    "run_plan",
    "sum_gradients",
]
