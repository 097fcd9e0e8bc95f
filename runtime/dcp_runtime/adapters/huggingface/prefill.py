"""`prefill`: run prompts over all ranks, and leave their caches with the ranks that decode them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from dcp_dsl.arrays import Ints
from dcp_runtime.data.local_data import LocalData
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import LayerPlans
from dcp_runtime.execute.dispatch import undispatch
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.batch_plans import BatchPlan
from dcp_runtime.transport.group_store import Group, process_group


@torch.no_grad()
def prefill(
    model: torch.nn.Module,
    executor: DCPExecutor,
    batch: tuple[LocalData, BatchPlan],
    decoders: Sequence[int],
    group: Group | None = None,
) -> dict[int, Any]:  # Any: transformers' DynamicCache
    """Run packed prompts over all ranks; leave the keys and values of each with its decoder.

    A cache holds all tokens of a prompt but the last: ``model.generate(prompt,
    past_key_values=cache)``, under an attention of transformers, computes the last token first and
    goes on. Collective. A rank holds the keys and values of its own tokens beside those of the
    prompts that it decodes.

    Args:
        model: of transformers, with ``attn_implementation="dcp"``.
        executor: of the ranks that share the batch.
        batch: of a `DCPDataloader` over prompts, under the mask that decoding goes on with.
        decoders: for each prompt of the batch, in packed order, the rank that decodes it.
        group: ranks that share the batch, a group or a `DeviceMesh` of one dim; ``None`` for all.

    Returns:
        The caches of the prompts that this rank decodes, by their places in the batch.

    Raises:
        RunError: if there are not as many decoders as prompts, or one is no rank of the group.
    """
    from transformers.cache_utils import DynamicCache

    data, plan = batch
    ranks = dist.get_world_size(process_group(group))
    prompts = np.split(np.arange(plan.num_tokens), plan.cu_seqlens[1:-1])
    if len(decoders) != len(prompts) or not all(0 <= rank < ranks for rank in decoders):
        raise RunError(
            f"prefill: expected for each of the {len(prompts)} prompts a decoder out of {ranks} "
            f"ranks, got {list(decoders)}"
        )
    own: Any = DynamicCache()
    data = data.to(next(model.parameters()).device)
    model(
        input_ids=data.tokens[None], position_ids=data.position_ids[None], past_key_values=own,
        use_cache=True, logits_to_keep=1, dcp=LayerPlans.prepare(executor, plan),
    )  # fmt: skip
    # Tokens of the packed batch by the rank that decodes them, prompt after prompt.
    wanted: list[Ints] = [np.zeros(0, np.int64)] * ranks
    for prompt, decoder in zip(prompts, decoders, strict=True):
        # All but the last token, which `generate` computes first.
        wanted[decoder] = np.concatenate([wanted[decoder], prompt[:-1]])
    caches = {at: DynamicCache() for at, decoder in enumerate(decoders) if decoder == executor.rank}
    lengths = [len(prompts[at]) - 1 for at in caches]
    for number, layer in enumerate(own.layers):  # a layer at a time, which bounds the memory
        rows = torch.stack([layer.keys[0], layer.values[0]]).transpose(0, 2)  # [T_local, Hkv, 2, D]
        rows = rows[: len(data.tokens)]  # without a stand-in
        found = undispatch(rows, plan, group, wanted).transpose(0, 2)
        for cache, (keys, values) in zip(
            caches.values(), torch.split(found, lengths, 2), strict=True
        ):
            cache.update(keys[None].contiguous(), values[None].contiguous(), number)
    return caches
