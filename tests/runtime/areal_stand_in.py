"""Stands for the FSDP engine of AReaL, by the names of its methods and of what they exchange.

Pinned: areal-project/AReaL, commit cbff54d6, `areal/engine/fsdp_engine.py`, `FSDPEngine`. A
micro-batch is packed to [1, T] and ends with a sequence of padding; with more than one rank of
`sp_group`, log-probabilities of this rank's tokens are gathered before the loss.
"""

import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch


@dataclasses.dataclass
class FSDPTrainContext:
    model_inputs: dict[str, Any]
    mb_input: dict[str, Any]
    pad_length: int = 0
    ulysses_pad_size: int = 0
    trie_node: Any = None

    def to_dict(self):
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


class MicroBatchItem(NamedTuple):
    orig_mb: dict[str, Any]
    padded_mb: dict[str, Any]
    padding_length: int
    old_cu_seqlens: torch.Tensor | None
    padded_to_length: int | None = None


def packed(sequences, padding):
    """Return a micro-batch of sequences as the engine prepares it."""
    lengths = torch.tensor([len(each) for each in sequences])
    ids = torch.cat([*sequences, torch.zeros(padding, dtype=torch.int64)])
    positions = [torch.arange(n) for n in [*lengths.tolist(), padding]]
    borders = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
    padded = {
        "input_ids": ids[None], "position_ids": torch.cat(positions)[None],
        "cu_seqlens": torch.cat([borders, borders[-1:] + padding]), "use_cache": False,
        "attention_mask": {"full_attention": None, "sliding_attention": None},
    }  # fmt: skip
    own = {"input_ids": ids[: len(ids) - padding], "cu_seqlens": borders}
    return MicroBatchItem(own, padded, padding, None, len(ids))


class FSDPEngine:
    """The engine without Ulysses, trees, critics and its optimizer."""

    def __init__(self, make_model, sp_size):
        self.make_model, self.enable_tree_training = make_model, False
        self.parallel_helper = SimpleNamespace(sp_size=sp_size)
        self.model = self._create_llm_actor_or_critic()

    def _create_llm_actor_or_critic(self):
        return self.make_model("sdpa")  # config.attn_impl, of which AReaL knows a few

    def forward_backward_batch(self, mb_list, process_output_fn, forward_only=False):
        for mb_item in mb_list:
            inputs, ctx = self._prepare_mb_inputs(mb_item)
            outputs = self.model(**inputs)
            logits = outputs.logits.squeeze(0)
            loss = process_output_fn(logits, ctx.to_dict())
            if not forward_only and loss is not None:
                loss.backward()

    def _prepare_mb_inputs(self, mb_item):
        assert self.parallel_helper.sp_size == 1, "the stand-in cannot cut"
        inputs = dict(mb_item.padded_mb)
        return inputs, FSDPTrainContext(inputs, mb_item.orig_mb, mb_item.padding_length)

    def _sp_all_gather(self, tensor):
        raise AssertionError("the stand-in cannot gather")

    def _compute_logprobs(self, logits, inputs, ulysses_pad_size=0):
        labels = inputs.get("rolled_input_ids", torch.roll(inputs["input_ids"], -1, -1))
        if labels.ndim == 2 and labels.shape[0] == 1:
            labels = labels.squeeze(0)
        logprobs = logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]
        if self.parallel_helper.sp_size > 1:
            logprobs = self._sp_all_gather(logprobs)
            if ulysses_pad_size > 0:
                logprobs = logprobs[:-ulysses_pad_size]
        return logprobs

    def train_batch(self, mb_list, loss_fn):
        def process_output(logits, ctx_dict):
            ctx = FSDPTrainContext(**ctx_dict)
            logprobs = self._compute_logprobs(logits, ctx.model_inputs, ctx.ulysses_pad_size)
            if ctx.pad_length > 0:
                logprobs = logprobs[: -ctx.pad_length]
            return loss_fn(logprobs, ctx.mb_input)

        self.forward_backward_batch(mb_list, process_output)
