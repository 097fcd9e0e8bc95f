"""Megatron-Core under DCP: attention, whole models, loss, packed batches, and its schedulers.

The plans of a batch travel as ``packed_seq_params``, which Megatron hands to every layer, also to
one that it recomputes::

    block.self_attention.submodules.core_attention = DCPCoreAttention  # in the layer's ModuleSpec
    use_plans(model)
    for data, plan in loader:  # a DCPDataloader over the context-parallel ranks
        sequences = PlannedSequences.prepare(executor, plan, data.position_ids)
        model(data.tokens[None], data.position_ids[None], None, packed_seq_params=sequences)

Megatron is imported only to compute losses and to write a distributed checkpoint.
"""

from dcp_runtime.adapters.megatron.batches import PlannedBatches
from dcp_runtime.adapters.megatron.layers import DCPCoreAttention, PlannedSequences
from dcp_runtime.adapters.megatron.loss import planned_loss
from dcp_runtime.adapters.megatron.model import use_plans
from dcp_runtime.adapters.megatron.scheduler import PlannedCPScheduler, planned_packing

__all__ = [
    "DCPCoreAttention",
    "PlannedBatches",
    "PlannedCPScheduler",
    "PlannedSequences",
    "planned_loss",
    "planned_packing",
    "use_plans",
]
