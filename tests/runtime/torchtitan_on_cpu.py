"""Lets torchtitan itself train on the CPU, where it is installed: ``import`` it first.

Without it, importing this fails; nothing here is needed for what stands in for torchtitan.
"""

from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torchtitan.tools.utils as tools

ANSWERS = {
    "get_device_name": "cpu", "current_device": 0, "device_count": 64, "memory_stats": {},
    "get_device_properties": SimpleNamespace(total_memory=1),
}  # fmt: skip


class Device:
    """What torchtitan asks of a device."""

    def __getattr__(self, name):
        return lambda *_, **__: ANSWERS.get(name)


tools.device_type, tools.device_module = "cpu", Device()
tools.get_local_device = lambda: torch.device("cpu")

from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.distributed import utils  # noqa: E402
from torchtitan.trainer import BaseDataLoader  # noqa: E402


class NoTokenizer(BaseTokenizer):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, **_):
        self.eos_id = 0

    def encode(self, *_, **__):
        return []

    def decode(self, *_, **__):
        return ""

    def get_vocab_size(self):
        return 2048


class NoData(BaseDataLoader):
    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, **_):
        pass

    def __iter__(self):
        return iter(())

    state_dict = load_state_dict = lambda *_: {}


def configure(base, context):
    """Change a config so that its trainer needs neither a GPU nor files."""
    base.tokenizer = NoTokenizer.Config()
    if type(base.dataloader).__module__.startswith("torchtitan."):
        base.dataloader = NoData.Config()
    base.training.mixed_precision_param, base.training.steps = "float32", 8
    base.training.disable_cuda_graphs = True
    base.checkpoint.enable = base.validator.enable = False
    base.debug.seed = 0
    base.metrics.log_freq = 1
    if not hasattr(base.training, "seq_len"):  # after 0.3 FSDP asks for a torch after 2.13
        base.model_spec.parallelize_fn = without_fsdp


def without_fsdp(model, *, parallel_dims, ac_config, dump_folder, **_):
    model.parallelize(parallel_dims)
    ac_config.build(dump_folder=dump_folder).apply(model)
    return model


clip = utils.clip_grad_norm_


def sum_and_clip(parameters, *args, **others):
    """Add gradients up where no FSDP does."""
    if not any(hasattr(p, "full_tensor") for p in parameters):
        for parameter in parameters:
            torch.distributed.all_reduce(parameter.grad)
    return clip(parameters, *args, **others)


utils.clip_grad_norm_ = sum_and_clip


def complete(trainer):
    """Let FSDP add gradients up as gloo can."""
    for module in trainer.model_parts[0].modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
