"""Stands for the FSDP engine of verl, by the names of its methods and of what they exchange.

Pinned: verl-project/verl, commit addf8056, `verl/workers/engine/fsdp/transformer_impl.py`,
`FSDPEngineWithLMHead`. It packs sequences to [1, T], rolls the ids of the whole batch for the
log-probabilities, cuts all for Ulysses if `use_ulysses_sp`, and gathers what comes back.
"""

from types import SimpleNamespace

import torch


class Engine:
    """The engine without the parts for other models; Ulysses itself is not there."""

    use_ulysses_sp = True

    def __init__(self, module):
        self.module = module

    def prepare_model_inputs(self, micro_batch):
        assert not self.use_ulysses_sp, "the stand-in cannot cut"
        ids = torch.cat(micro_batch["input_ids"])[None]
        positions = torch.cat([torch.arange(len(each)) for each in micro_batch["input_ids"]])[None]
        args = {
            "pad_size": 0, "input_ids_rmpad_rolled": torch.roll(ids, -1, 1).squeeze(0),
            "temperature_rmpad": torch.full((ids.shape[1],), micro_batch["temperature"]),
        }  # fmt: skip
        return {"input_ids": ids, "attention_mask": None, "position_ids": positions}, args

    def forward_step(self, micro_batch):
        inputs, args = self.prepare_model_inputs(micro_batch)
        output = self.module(**inputs, use_cache=False)
        logits = output.logits.squeeze(0) / args["temperature_rmpad"][:, None]
        rolled = args["input_ids_rmpad_rolled"]
        log_probs = logits.log_softmax(-1).gather(1, rolled[:, None])[:, 0]
        log_probs = self._gather_and_unpad_packed(log_probs, args["pad_size"])
        lengths = [len(each) for each in micro_batch["input_ids"]]
        return SimpleNamespace(log_probs=log_probs.split(lengths))

    def _gather_and_unpad_packed(self, values, pad_size):
        assert not self.use_ulysses_sp, "the stand-in cannot gather"
        assert pad_size == 0
        return values
