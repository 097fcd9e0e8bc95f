"""Choices of a user about a `DCPDataloader`, by subject; each has a default."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch.distributed as dist

from dcp_dsl import DatasetError
from dcp_dsl.arrays import settle
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_runtime.data.screening import RowPolicy
from dcp_runtime.errors import RunError
from dcp_runtime.transport.group_store import Group, process_group

PackingOrder: TypeAlias = Literal["in_order", "decreasing"]
Planner: TypeAlias = Literal["each", "first"]
HiddenTargets: TypeAlias = Literal["warn", "leave_out", "keep"]


@dataclass(frozen=True, slots=True)
class Packing:
    """Choices of packing rows into batches, and of the order of batches.

    Attributes:
        token_budget: most tokens of a batch.
        order: ``"in_order"`` closes a batch when the next row does not fit, ``"decreasing"`` packs
            tighter by taking the longest rows first.
        shuffle: whether every epoch has another order of rows (of batches, for ``"decreasing"``),
            the same on every rank.
        seed: of the shuffles.
        drop_last: whether the last batch of an epoch, which may be far from full, is left out.
        batches: row numbers of every batch, from a sampler of yours, instead of packing.

    Raises:
        RunError: if a value is out of its range, or two contradict each other.
    """

    token_budget: int = 8192
    order: PackingOrder = "in_order"
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    batches: Sequence[Sequence[int]] | None = None

    def __post_init__(self) -> None:
        check_count("Packing.token_budget", self.token_budget, 1)
        check_count("Packing.seed", self.seed, 0)
        _check_choice("Packing.order", self.order, PackingOrder)
        if self.batches is not None:
            if self.shuffle:
                raise RunError("expected no shuffle beside batches: their order is the one given")
            fixed = tuple(tuple(int(row) for row in rows) for rows in self.batches)
            settle(self, batches=fixed)


@dataclass(frozen=True, slots=True)
class RowRules:
    """Choices of reading rows, and of refusing or skipping unusable ones.

    Attributes:
        policy: for rows that are empty, longer than the budget or do not fit their mask:
            ``"error"``; ``"skip"`` them; ``"truncate"`` those too long. The loader's `screening`
            counts them.
        token_column: column of the tokens; by default ``tokens``, else ``input_ids``.
        loss_column: column with 0 or 1 per token, 1 where the loss counts it as a target.
        labels_column: column with a token id per token, -100 where the loss does not count it;
            label i stands at token i and the token before predicts it, as in Hugging Face's causal
            models. Rows without a column of the default name have their tokens as labels; ``None``
            reads none. Must count the same targets as the `loss_column`, if both are there.
        position_column: column with the position of each token; by default they count from 0.
        extra_columns: columns with one number per token that come along in `LocalData.extra`:
            bool, any integers as int64, any floats as float32.
        hidden_targets: for targets that do not see the token which should predict them, decided
            from the mask: ``"warn"`` leaves them out and says so once; ``"leave_out"`` leaves them
            out; ``"keep"`` trains on them. The loader's `screening` counts those left out.
        path: where an in-memory data set counts as lying when a spec looks for its ``for ... use``.

    Raises:
        DatasetError: if there is no such policy.
        RunError: if `hidden_targets` or `extra_columns` cannot be what they are.
    """

    policy: RowPolicy = "error"
    token_column: str | None = None
    loss_column: str | None = None
    labels_column: str | None = "labels"
    position_column: str | None = None
    extra_columns: Sequence[str] = ()
    hidden_targets: HiddenTargets = "warn"
    path: str = ""

    def __post_init__(self) -> None:
        if self.policy not in get_args(RowPolicy):
            raise DatasetError(
                f"expected policy to be one of {', '.join(get_args(RowPolicy))}, got "
                f"{self.policy!r}"
            )
        _check_choice("RowRules.hidden_targets", self.hidden_targets, HiddenTargets)
        names = self.extra_columns
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise RunError(
                f"RowRules.extra_columns: expected a tuple of names, got {names!r:.60}; one column "
                'is ("advantages",)'
            )
        settle(self, extra_columns=tuple(dict.fromkeys(names)))


@dataclass(frozen=True, slots=True)
class Planning:
    """The model and the machine that batches are planned for, and the options of planning.

    Attributes:
        shape: heads of the attention layer on one rank.
        cluster: devices that share a batch; by default one node with a device for every rank.
        config: how to plan, head groups included.
        block_size: most tokens per planning block; by default chosen for every batch, so that
            whole blocks fill every rank's share.
        group: ranks that share the batches, a group or a `DeviceMesh` of one dim; ``None`` for all.
        rank: whose part is yielded; by default this process's rank in the group, else 0.

    Raises:
        RunError: if the block size is no count, or the mesh has several dims.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    cluster: Cluster | None = None
    config: PlanConfig = field(default_factory=PlanConfig)
    block_size: int | None = None
    group: Group | None = None
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.block_size is not None:
            check_count("Planning.block_size", self.block_size, 1)
        process_group(self.group)  # a mesh of several dims is refused here

    @property
    def process_group(self) -> dist.ProcessGroup | None:
        """The group of the ranks that share the batches; ``None`` for all."""
        return process_group(self.group)

    @property
    def devices(self) -> Cluster:
        """The devices that share a batch."""
        if self.cluster is not None:
            return self.cluster
        is_alone = not dist.is_initialized()
        return Cluster(devices_per_node=1 if is_alone else dist.get_world_size(self.process_group))

    @property
    def own_rank(self) -> int:
        """The rank whose part is yielded.

        Raises:
            RunError: if it is none of the devices.
        """
        rank, count = self.rank, self.devices.num_devices
        if rank is None:
            rank = dist.get_rank(self.process_group) if dist.is_initialized() else 0
        if not 0 <= rank < count:
            raise RunError(
                f"expected a rank from 0 to {count - 1}, the devices of the cluster, got {rank}; "
                "give Planning the cluster of all ranks that share a batch, and the rank among "
                "these"
            )
        return rank


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Plans made before they are needed.

    Attributes:
        batches: how many batches ahead.
        processes: processes that plan them; 0 plans in this process, when a batch is needed. By
            default 1 where a core is left for it, else 0.
        planner: ``"each"`` rank makes the same plan itself, or the ``"first"`` of the group makes
            it and sends every rank its part.

    Raises:
        RunError: if a number is no count, or there is no such planner.
    """

    batches: int = 2
    processes: int | None = None
    planner: Planner = "each"

    def __post_init__(self) -> None:
        check_count("LookAhead.batches", self.batches, 0)
        if self.processes is not None:
            check_count("LookAhead.processes", self.processes, 0)
        _check_choice("LookAhead.planner", self.planner, Planner)

    @property
    def num_processes(self) -> int:
        """Processes that plan for this rank: those chosen, else 1 where a core is left for it.

        Each rank of this machine needs a core itself; with ``planner="each"`` each needs another
        one for its planner, with ``"first"`` one planner serves all.
        """
        if self.processes is not None:
            return self.processes
        ranks = _ranks_of_this_machine()
        planners = ranks if self.planner == "each" else 1
        return int(self.batches > 0 and len(os.sched_getaffinity(0)) >= ranks + planners)


def _ranks_of_this_machine() -> int:
    """Return how many ranks share its cores; torchrun says it, else all ranks might."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    return dist.get_world_size() if dist.is_initialized() else 1


def check_count(name: str, value: object, least: int) -> None:
    """Refuse a value that is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RunError(f"{name}: expected at least {least}, got {value!r}")


def _check_choice(name: str, value: object, choices: Any) -> None:  # Any: a Literal
    if value not in get_args(choices):
        raise RunError(f"{name}: expected one of {', '.join(get_args(choices))}, got {value!r}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse an argument that is not the expected group of choices."""
    if not isinstance(value, kind):
        raise RunError(
            f"{name}: expected a {kind.__name__}, got {value!r:.60}; give {name}="
            f"{kind.__name__}(...), which holds the choices of this kind"
        )
