"""A rank that probes a small GPT of Megatron, with the mask that it is given."""

import numpy as np
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron_models import OnCpu, model_of

from dcp_runtime import probe

TOKENS = 23
Q, K = np.mgrid[:TOKENS, :TOKENS]
PACKED = (K <= Q) & (Q // 9 == K // 9)

dist.init_process_group("gloo")
parallel_state.initialize_model_parallel()
with OnCpu():
    model, ids = model_of(False), torch.arange(TOKENS)[None]
    for seen in (PACKED, K <= Q):
        report = probe(model, (ids, ids, torch.from_numpy(~seen)[None, None]), PACKED)
        for layer in report.layers:
            assert layer.module.endswith(".core_attention` (DotProductAttention)")
            assert not layer.hides.any()
            assert np.array_equal(layer.leaks, seen & ~PACKED)
dist.destroy_process_group()
