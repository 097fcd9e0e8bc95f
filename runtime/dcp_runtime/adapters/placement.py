"""Where the tokens of a trainer's batch are: one map that the hooks of different trainers take.

Trainers that split a sequence over ranks (NeMo Automodel, MagiAttention's recipes, Ulysses) hand a
whole batch to a hook, and take back this rank's tokens with their places in the whole. They give
every rank equally many tokens; plans do not, so the shorter ranks get padding behind their own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcp_planner import ModelShape, PlanConfig
from dcp_runtime.data.choices import LookAhead, Packing, Planning, RowRules
from dcp_runtime.data.dataloader import DCPDataloader
from dcp_runtime.data.local_data import LocalData
from dcp_runtime.data.loss_masks import IGNORE_LABEL
from dcp_runtime.data.rows import MaskFunction, Row
from dcp_runtime.errors import RunError
from dcp_runtime.execute.attention import LayerPlans
from dcp_runtime.execute.dispatch import undispatch
from dcp_runtime.execute.executor import DCPExecutor
from dcp_runtime.plans.batch_plans import BatchPlan
from dcp_runtime.transport.group_store import Group

Batch = Mapping[str, Any]
"""A batch of a trainer: tensors ``[B, S, ...]`` with a value per token, and anything else."""


@dataclass(frozen=True, slots=True)
class PaddedPlans(LayerPlans):
    """The plans of a batch whose local tokens end with padding, which sees nothing."""

    own: int  # tokens of this rank in front of the padding
    model: torch.nn.Module | None = None  # whose outputs leave it out, where it is a stand-in


@dataclass(frozen=True)
class TokenPlacement:
    """The tokens of each rank, equally many with padding.

    Tokens of the batch are numbered in packed order, padding behind them, each on one rank.

    Attributes:
        plan: of the batch, or this rank's part of it.
        rank: this rank among those that share the batch.

    >>> from dcp_dsl import Slabs, block_sparsity
    >>> from dcp_planner import Cluster, build_plan
    >>> blocks = block_sparsity([Slabs(5, [0], [5], [0], [1], [0], [1])], 2, 2)
    >>> shape, config = ModelShape(1, 1, 8), PlanConfig("static:ring")
    >>> plan = build_plan(blocks, shape, Cluster(1, 2), config)
    >>> [TokenPlacement(plan, rank).local_token_global_indices.tolist() for rank in (0, 1)]
    [[0, 1, 4], [2, 3, 5]]
    """

    plan: BatchPlan
    rank: int

    @cached_property
    def _rows(self) -> list[Any]:  # Any: int64 arrays
        return [self.plan.local_tokens(rank) for rank in range(self.plan.num_devices)]

    @property
    def own(self) -> int:
        """Tokens of this rank, without padding."""
        return len(self._rows[self.rank])

    @property
    def padded_tokens(self) -> int:
        """Tokens of all ranks, with padding."""
        return len(self._rows) * max(map(len, self._rows))

    @cached_property
    def local_token_global_indices(self) -> Tensor:
        """The number of each local token in the padded batch, int64 ``[T_local]``."""
        share = self.padded_tokens // len(self._rows)
        missing = [share - len(rows) for rows in self._rows]
        begin = self.plan.num_tokens + sum(missing[: self.rank])
        padding = np.arange(begin, begin + missing[self.rank])
        return torch.from_numpy(np.concatenate([self._rows[self.rank], padding]))

    def dispatch(self, x: Tensor, dim: int = 1, fill: float = 0) -> Tensor:
        """Return this rank's tokens of a tensor of the whole batch; padding gets `fill`.

        Raises:
            RunError: if the tensor has another number of tokens.
        """
        if x.shape[dim] != self.plan.num_tokens:
            raise RunError(
                f"dispatch: expected {self.plan.num_tokens} tokens in dim {dim}, got shape "
                f"{list(x.shape)}; give the tensor of the whole batch, rows one after another"
            )
        shape = [*x.shape]
        shape[dim] = self.padded_tokens - self.plan.num_tokens
        padded = torch.cat([x, x.new_full(shape, fill)], dim)
        return padded.index_select(dim, self.local_token_global_indices.to(x.device))

    def undispatch(self, x: Tensor, group: Group | None = None, dim: int = 1) -> Tensor:
        """Return the tensor of the whole batch on every rank, without padding; collective.

        Gradients flow back as through `dcp_runtime.undispatch`.

        Raises:
            RunError: if the tensor has another number of tokens.
        """
        share = len(self.local_token_global_indices)
        if x.shape[dim] != share:
            raise RunError(
                f"undispatch: expected {share} tokens in dim {dim}, padding included, got shape "
                f"{list(x.shape)}"
            )
        own = x.movedim(dim, 0)[: self.own]
        return undispatch(own, self.plan, group).movedim(0, dim)

    def layers(self, executor: DCPExecutor) -> PaddedPlans:
        """Make the plans ready for a model of transformers: ``model(..., dcp=layers)``."""
        found = LayerPlans.prepare(executor, self.plan)
        return PaddedPlans(found.layers, found.cycle, self.own)


@dataclass(frozen=True, slots=True)
class BatchSharder:
    """Plans each batch of a trainer when it comes, and gives this rank its tokens.

    Every rank of the group has the whole batch and makes the same plan, in the trainer's time; take
    batches from `DCPDataloader` where they can be planned ahead.

    Attributes:
        mask: a mask, a stack, or a function from a row to one.
        executor: of the ranks that share the batch.
        shape: heads of the attention layer.
        columns: gives for the batch and the number of a row the columns that the mask reads.
        group: the ranks that share the batch; by default all.
        config: how to plan.
    """

    mask: MaskFunction
    executor: DCPExecutor
    shape: ModelShape
    columns: Callable[[Batch, int], Row] | None = None
    group: Group | None = None
    config: PlanConfig = PlanConfig()  # noqa: RUF009 - frozen

    def shard(
        self, batch: Batch, padding_token_id: int = 0
    ) -> tuple[dict[str, Any], TokenPlacement]:
        """Return this rank's part of a batch, ``[1, T_local, ...]``, and where its tokens are.

        Tensors ``[B, S, ...]`` are laid out row after row and cut; labels of padding are -100.
        Positions are those of the mask's branches, unless the batch has `position_ids`. The part
        also holds `dcp`, the plans for the model. Collective.

        Raises:
            RunError: if the batch has no `input_ids`, or an `attention_mask` that hides tokens.
            DatasetError: if the columns of a row do not fit its mask.
        """
        ids = batch.get("input_ids")
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            raise RunError(
                "BatchSharder: expected input_ids [B, S] in the batch, got "
                f"{list(ids.shape) if isinstance(ids, Tensor) else ids!r:.60}; give the whole batch"
            )
        hides = batch.get("attention_mask")
        if hides is not None and not bool(hides.all()):
            raise RunError(
                "BatchSharder: the attention_mask hides tokens, which the mask of the plan does "
                "not know; pack rows instead of padding them"
            )
        data, plan = self._planned(batch, ids)
        place = TokenPlacement(plan, self.executor.rank)
        fills = {"input_ids": padding_token_id, "labels": IGNORE_LABEL}
        part: dict[str, Any] = {}  # Any: tensors, and what else the trainer gives
        for name, value in batch.items():
            if name == "attention_mask":
                continue
            is_by_token = isinstance(value, Tensor) and value.shape[:2] == ids.shape
            part[name] = (
                place.dispatch(value.flatten(0, 1)[None], 1, fills.get(name, 0))
                if is_by_token
                else value
            )
        if "position_ids" not in batch:
            positions = torch.zeros(part["input_ids"].shape, dtype=torch.int64, device=ids.device)
            positions[0, : place.own] = data.position_ids
            part["position_ids"] = positions
        part["dcp"] = place.layers(self.executor)
        return part, place

    def _planned(self, batch: Batch, ids: Tensor) -> tuple[LocalData, BatchPlan]:
        rows = [{"tokens": row} for row in ids.cpu().numpy()]
        if self.columns is not None:
            rows = [{**self.columns(batch, number), **row} for number, row in enumerate(rows)]
        loader = DCPDataloader(
            rows, self.mask, Packing(token_budget=max(1, ids.numel())),
            rows=RowRules(labels_column=None, hidden_targets="leave_out"),
            planning=Planning(self.shape, group=self.group, config=self.config),
            look_ahead=LookAhead(processes=0),
        )  # fmt: skip
        (found,) = loader
        return found
