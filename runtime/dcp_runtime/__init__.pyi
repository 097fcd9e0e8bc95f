from .adapters.context_parallel import DCPLoadBalancer, balanced_order
from .adapters.flex_mask import check_mask_mod, flex_block_mask, flex_mask_mod, import_mask_mod
from .adapters.huggingface.attention import register_dcp
from .adapters.huggingface.model_check import check_model
from .adapters.huggingface.prefill import prefill
from .adapters.huggingface.trainer import DCPTrainerMixin
from .adapters.placement import BatchSharder, TokenPlacement
from .auditing.hook import audit
from .data.choices import LookAhead, Packing, Planning, RowRules
from .data.dataloader import DCPDataloader
from .data.local_data import LocalData, by_rollout, next_token_loss
from .data.trees import RolloutTrees, group_rows
from .emulation.emulate import EmulatedRun, Emulation, emulate_plan
from .errors import RunError
from .execute.attention import DCPAttn, LayerPlans
from .execute.dispatch import dispatch, undispatch
from .execute.executor import DCPExecutor
from .execute.gradients import sum_gradients
from .execute.prepared_plan import PreparedPlan
from .launch.launcher import RunConfig, open_world, run_plan
from .launch.world import ProcessWorld
from .plans.batch_plans import BatchPlan, DeviceRates, StackedPlans
from .probing.probe import ProbeReport, assert_sees, probe
from .run_log.log import MLflowLog, PrometheusLog, RunLog, TensorBoardLog, WandbLog
from .run_log.records import RunHistory
from .verify.verification import TensorError

__all__ = [
    "BatchPlan",
    "BatchSharder",
    "DCPAttn",
    "DCPDataloader",
    "DCPExecutor",
    "DCPLoadBalancer",
    "DCPTrainerMixin",
    "DeviceRates",
    "EmulatedRun",
    "Emulation",
    "LayerPlans",
    "LocalData",
    "LookAhead",
    "MLflowLog",
    "Packing",
    "Planning",
    "PreparedPlan",
    "ProbeReport",
    "ProcessWorld",
    "PrometheusLog",
    "RolloutTrees",
    "RowRules",
    "RunConfig",
    "RunError",
    "RunHistory",
    "RunLog",
    "StackedPlans",
    "TensorBoardLog",
    "TensorError",
    "TokenPlacement",
    "WandbLog",
    "assert_sees",
    "audit",
    "balanced_order",
    "by_rollout",
    "check_mask_mod",
    "check_model",
    "dispatch",
    "emulate_plan",
    "flex_block_mask",
    "flex_mask_mod",
    "group_rows",
    "import_mask_mod",
    "next_token_loss",
    "open_world",
    "prefill",
    "probe",
    "register_dcp",
    "run_plan",
    "sum_gradients",
    "undispatch",
]
