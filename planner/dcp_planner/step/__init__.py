"""Plan a whole training step: which documents form which micro-batch, on which devices."""

from dcp_planner.step.file import StepFile, StepGroup, read_step, write_step
from dcp_planner.step.iteration import predict_step
from dcp_planner.step.plan_step import StepPlan, plan_step
from dcp_planner.step.policies import StepSetting
from dcp_planner.step.setting import MODELS, Assignment, Documents, StepMesh, StepModel, step_model

__all__ = [
    "MODELS", "Assignment", "Documents", "StepFile", "StepGroup", "StepMesh", "StepModel",
    "StepPlan", "StepSetting", "plan_step", "predict_step", "read_step", "step_model",
    "write_step",
]  # fmt: skip
