from .adapters.context_parallel import DCPLoadBalancer
from .adapters.flex_mask import flex_block_mask, flex_mask_mod
from .adapters.fsdp import sum_gradients
from .adapters.huggingface import register_dcp
from .adapters.mask_mod import MaskModDifference, check_mask_mod, import_mask_mod
from .adapters.prefill import prefill
from .adapters.trainer import DCPTrainerMixin
from .data.choices import LookAhead, Packing, Planning, RowRules
from .data.dataloader import DCPDataloader
from .data.local_data import LocalData, next_token_loss
from .data.look_ahead import PlanningMetrics
from .data.screening import Screening
from .errors import RunError
from .execute.attention import DCPAttn, LayerPlans
from .execute.dispatch import dispatch, undispatch
from .execute.executor import DCPExecutor
from .execute.prepared_plan import PreparedPlan
from .kernels.choice import KernelChoice, choose_kernel
from .launch.config import RunConfig
from .launch.launcher import RunResult, open_world, run_plan
from .launch.world import ProcessWorld
from .plans.batch_plans import BatchPlan, StackedPlans
from .plans.device_rates import DeviceRates
from .run_log.history import RunHistory
from .run_log.log import RunLog
from .run_log.sinks import MLflowLog, PrometheusLog, TensorBoardLog, WandbLog
from .verify.verification import TensorError

__all__ = [
    "BatchPlan",
    "DCPAttn",
    "DCPDataloader",
    "DCPExecutor",
    "DCPLoadBalancer",
    "DCPTrainerMixin",
    "DeviceRates",
    "KernelChoice",
    "LayerPlans",
    "LocalData",
    "LookAhead",
    "MLflowLog",
    "MaskModDifference",
    "Packing",
    "Planning",
    "PlanningMetrics",
    "PreparedPlan",
    "ProcessWorld",
    "PrometheusLog",
    "RowRules",
    "RunConfig",
    "RunError",
    "RunHistory",
    "RunLog",
    "RunResult",
    "Screening",
    "StackedPlans",
    "TensorBoardLog",
    "TensorError",
    "WandbLog",
    "check_mask_mod",
    "choose_kernel",
    "dispatch",
    "flex_block_mask",
    "flex_mask_mod",
    "import_mask_mod",
    "next_token_loss",
    "open_world",
    "prefill",
    "register_dcp",
    "run_plan",
    "sum_gradients",
    "undispatch",
]
