from .attention import DCPAttn
from .data.local_data import LocalData
from .data.look_ahead import PlanningMetrics
from .data.screening import Screening
from .dataloader import DCPDataloader
from .errors import RunError
from .executor import DCPExecutor
from .flex_mask import flex_block_mask, flex_mask_mod
from .huggingface import LayerPlans, register_dcp
from .kernels.choice import KernelChoice, choose_kernel
from .launcher import RunConfig, RunResult, open_world, run_plan
from .verification import TensorError
from .world import ProcessWorld

__all__ = [
    "DCPAttn",
    "DCPDataloader",
    "DCPExecutor",
    "KernelChoice",
    "LayerPlans",
    "LocalData",
    "PlanningMetrics",
    "ProcessWorld",
    "RunConfig",
    "RunError",
    "RunResult",
    "Screening",
    "TensorError",
    "choose_kernel",
    "flex_block_mask",
    "flex_mask_mod",
    "open_world",
    "register_dcp",
    "run_plan",
]
