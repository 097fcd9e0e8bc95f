"""Stands in for torchtitan: the config of a small model."""

from torchtitan.components.loss import ChunkedLossWrapper
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def llama3_debugmodel():
    return Trainer.Config(
        loss=ChunkedLossWrapper.Config(), model_spec=model_registry("debugmodel", "flex")
    )


llama3_8b = llama3_debugmodel
