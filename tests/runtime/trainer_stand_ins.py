"""Stands for parts of training frameworks, by the names of their methods and what they exchange.

Pinned:

- AReaL: areal-project/AReaL, commit cbff54d6, `areal/engine/fsdp_engine.py`, `FSDPEngine`. A
  micro-batch is packed to [1, T] and ends with a sequence of padding; with more than one rank of
  `sp_group`, log-probabilities of this rank's tokens are gathered before the loss.
- NeMo Automodel: NVIDIA-NeMo/Automodel, commit 4cae89f1, `components/distributed/context_parallel`.
  A model has `prepare_model_inputs_for_cp(batch, num_chunks)`, which returns a sharder; the trainer
  calls its `shard_batch`, runs the model on the batch that comes back, and moves further tensors
  with the layout: equal parts of a padded sequence, one after another by rank.
- verl: verl-project/verl, commit addf8056, `verl/workers/engine/fsdp/transformer_impl.py`,
  `FSDPEngineWithLMHead`. It packs sequences to [1, T], rolls the ids of the whole batch for the
  log-probabilities, cuts all for Ulysses if `use_ulysses_sp`, and gathers what comes back.
- Megatron-LM: NVIDIA/Megatron-LM, commit d98e8a64, `megatron/core/datasets/data_schedule.py`. A
  scheduler gets the ids and lengths of a global batch and says which samples each of ``dp x cp``
  ranks packs in each micro-batch; ranks of one context-parallel group get the same.
- torchtitan: pytorch/torchtitan, commit 0497bf4a, `distributed/context_parallel.py`; the call of
  `build` is that of `Decoder._cp_shard`, the masks of ranks that of `cp_attention.py` near it. The
  sequence is folded to [T]; keys and values are gathered, queries are not.
"""

import dataclasses
import enum
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.attention import flex_attention as flex


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


@dataclass(frozen=True)
class ShardLayout:
    local_token_global_indices: torch.Tensor | None = None
    original_seq_len: int | None = None
    padded_seq_len: int | None = None
    input_row_shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CPShardResult:
    context: AbstractContextManager
    batch: dict[str, Any]
    layout: ShardLayout | None = None


@dataclass(frozen=True)
class ContextParallelismSharder:
    shard_batch: Any
    local_token_global_indices: Any


def prepare_forward(model, batch, mesh, padding_token_id=0):
    """Return what the trainer runs the model with."""
    sharder = model.prepare_model_inputs_for_cp(batch, num_chunks=1)
    assert isinstance(sharder, ContextParallelismSharder)
    return sharder.shard_batch(
        mesh, None, dict(batch), loss_mask=None, padding_token_id=padding_token_id
    )


def shard(layout, tensor, fill):
    """Cut a tensor [1, S] of the whole batch as the model's inputs are."""
    missing = layout.padded_seq_len - tensor.shape[1]
    assert tensor.shape[1] == layout.original_seq_len
    padded = torch.nn.functional.pad(tensor, (0, missing), value=fill)
    return padded[:, layout.local_token_global_indices]


def gather(layout, tensor, ranks):
    """Join equal parts of all ranks in the order of the whole batch."""
    own = layout.local_token_global_indices
    assert layout.padded_seq_len == ranks * len(own)
    parts = [torch.empty_like(tensor) for _ in range(ranks)]
    places = [torch.empty_like(own) for _ in range(ranks)]
    dist.all_gather(parts, tensor.contiguous())
    dist.all_gather(places, own)
    whole = torch.empty_like(torch.cat(parts, 1))
    whole[:, torch.cat(places)] = torch.cat(parts, 1)
    return whole[:, : layout.original_seq_len]


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


class BasePackingScheduler:
    def __init__(
        self, max_seqlen_per_dp_cp_rank, cp_size, dp_size, microbatch_group_size_per_vp_stage
    ):
        self.max_seqlen_per_dp_cp_rank = max_seqlen_per_dp_cp_rank
        self.cp_size = cp_size
        self.dp_size = dp_size
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage


class DpBalancedScheduler(BasePackingScheduler):
    """The class without its messages between ranks."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_seq_len_all_ranks = self.max_seqlen_per_dp_cp_rank * self.cp_size

    def get_groups_and_subsamples(self, sample_id_seqlens):
        """Pack samples in their order, as many as fit; then split packs to a multiple of ranks."""
        packs, room = [], 0
        for number, (_, length) in enumerate(sample_id_seqlens):
            if length > room:
                packs.append([])
                room = self.max_seq_len_all_ranks
            packs[-1].append(number)
            room -= length
        multiple, at = self.dp_size * (self.microbatch_group_size_per_vp_stage or 1), len(packs) - 1
        while len(packs) % multiple:
            assert at > 0, "Not enough samples to move"
            if len(packs[at]) > 1:
                packs.append([packs[at].pop()])
            else:
                at -= 1
        return [
            [packs[first + rank // self.cp_size] for rank in range(self.cp_size * self.dp_size)]
            for first in range(0, len(packs), self.dp_size)
        ]

    def run(self, lengths):
        """Return what each rank packs, checked as `run` does."""
        sample_id_groups = self.get_groups_and_subsamples(list(enumerate(lengths)))
        set_gbs = {sample for group in sample_id_groups for sub in group for sample in sub}
        assert len(set_gbs) == len(lengths)
        return sample_id_groups


class PackingSchedulerEnum(enum.Enum):
    DP_BALANCED = "dp_balanced"


def new_map():
    """Return `scheduler_map`, which is a module's in Megatron."""
    return {PackingSchedulerEnum.DP_BALANCED: DpBalancedScheduler}


def wrap_data_iterator(scheduler_map, name, lengths, room, cp_size, dp_size, stages=None):
    """Make the scheduler of a name as Megatron does, and run it."""
    scheduler_type = PackingSchedulerEnum[name.upper()]
    return scheduler_map[scheduler_type](room, cp_size, dp_size, stages).run(lengths)


class Configurable:
    @dataclass(kw_only=True, slots=True)
    class Config:
        _owner: ClassVar[type | None] = None

        def build(self, **kwargs):
            return self._owner(config=replace(self), **kwargs)

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        if "Config" in cls.__dict__:
            assert "__slots__" in cls.Config.__dict__
            cls.Config._owner = cls


class ContextParallelLoadBalancer(Configurable, ABC):
    @abstractmethod
    def generate_permutation(self):
        raise NotImplementedError


def cp_shard(config, tensors, masks, group):
    """Cut tensors [T, ...] and masks for this rank, as `_cp_shard` does; return the order, too."""
    tokens, ranks, rank = len(tensors[0]), group.size(), dist.get_rank(group)
    permutation = config.build(seq_len=tokens, attention_metadata=masks).generate_permutation()
    assert permutation.shape == (1, tokens)
    share = tokens // ranks
    own = permutation[0, rank * share : (rank + 1) * share]
    local = {name: prepare_cp_metadata(mask, permutation, group) for name, mask in masks.items()}
    return [tensor[own] for tensor in tensors], local, permutation


def prepare_cp_metadata(mask, permutation, group):
    """Return the mask of this rank's queries against all keys, both in the new order."""
    tokens, _ = mask.seq_lengths
    share, first = tokens // group.size(), dist.get_rank(group) * (tokens // group.size())

    def local(b, h, q, k):
        return mask.mask_mod(b, h, permutation[0][q + first], permutation[0][k])

    return flex.create_block_mask(local, 1, 1, share, tokens, "cpu", BLOCK_SIZE=mask.BLOCK_SIZE)
