"""The options of a `DCPDataloader`, by subject, and the replicas of ranks that follow from them.

Each option has a default.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcp_dsl.arrays import settle
from dcp_planner import Cluster, ModelShape, PlanConfig
from dcp_planner.step import StepModel
from dcp_runtime.data.dealing import Balance, Dealing
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import DeviceRates
from dcp_runtime.plans.own_cluster import cluster_of_ranks
from dcp_runtime.transport.group_store import Group, process_group

PackingOrder: TypeAlias = Literal["in_order", "decreasing"]
Planner: TypeAlias = Literal["each", "first"]
Sharing: TypeAlias = Literal["replica", "all", "best"]
Width: TypeAlias = Literal["group", "per_document"]
RowPolicy: TypeAlias = Literal["error", "skip", "truncate"]
HiddenTargets: TypeAlias = Literal["warn", "leave_out", "keep"]
SharedTargets: TypeAlias = Literal["once", "per_path"]


@dataclass(frozen=True, slots=True)
class Packing:
    """Choices of packing rows into global batches, and of dealing each to devices.

    One step of the optimizer sees a global batch, of which every replica runs `micro_batches`. It
    holds the rows of neighbouring packs, as many as all replicas have micro-batches. `balance`
    decides which of these rows meet in a micro-batch; the sum of the gradients does not depend on
    it.

    Attributes:
        token_budget: most tokens of a replica in one micro-batch.
        order: ``"in_order"`` closes a pack when the next row does not fit, ``"decreasing"`` packs
            tighter by taking the longest rows first.
        shuffle: whether every epoch has another order of rows (of packs, for ``"decreasing"``), the
            same on every rank.
        seed: of the shuffles.
        drop_last: whether the last global batch of an epoch, which may be far from full, is left
            out. With ``"decreasing"`` it holds the shortest rows, in every epoch.
        replicas: groups of ranks with micro-batches of their own; by default those of the mesh in
            `Planning.group`, else 1.
        micro_batches: of each replica in a global batch, equally many on all replicas. The ranks of
            a micro-batch without rows run their layers on no tokens.
        balance: ``"work"`` deals rows by the time that they are predicted to take under their own
            masks; ``"order"`` deals the packs in turn: pack k goes to replica k % replicas.
        group: the ranks that share a micro-batch, and so one plan: those of one ``"replica"``, by
            default; ``"all"`` ranks, so that attention runs anywhere; or for each global batch the
            ``"best"`` of both, which is predicted to be faster.
        width: ``"per_document"`` spreads every row over as many devices as is fastest, 1, 2, 4, ...
            of any replica; all ranks share one plan then.
        window: global batches that are dealt together. Above 1, rows move between these batches:
            outliers are spread, and the order of sampling is no longer that of the data set.

    Raises:
        RunError: if a value is out of its range, or two contradict each other.
    """

    token_budget: int = 8192
    order: PackingOrder = "in_order"
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    replicas: int | None = None
    micro_batches: int = 1
    balance: Balance = "work"
    group: Sharing | None = None
    width: Width = "group"
    window: int = 1

    def __post_init__(self) -> None:
        check_count("Packing.token_budget", self.token_budget, 1)
        check_count("Packing.seed", self.seed, 0)
        check_count("Packing.micro_batches", self.micro_batches, 1)
        check_count("Packing.window", self.window, 1)
        if self.replicas is not None:
            check_count("Packing.replicas", self.replicas, 1)
        _check_choice("Packing.order", self.order, PackingOrder)
        _check_choice("Packing.balance", self.balance, Balance)
        _check_choice("Packing.width", self.width, Width)
        is_spread = self.width == "per_document"
        # Groups of any width may lie anywhere, so no replica has a micro-batch of its own.
        if self.group is None:
            settle(self, group="all" if is_spread else "replica")
        _check_choice("Packing.group", self.group, Sharing)
        if is_spread and (self.group != "all" or self.balance != "work"):
            raise RunError(
                "Packing.width: 'per_document' spreads rows by work over devices of all replicas: "
                f"expected group='all' and balance='work', got {self.group!r} and {self.balance!r}"
            )
        if self.window > 1 and self.balance != "work":
            raise RunError(
                f"Packing.window: {self.window} global batches are dealt together by work: "
                f"expected balance='work', got {self.balance!r}"
            )


@dataclass(frozen=True, slots=True)
class RowRules:
    """Choices of reading rows, and of refusing, skipping or cutting unusable rows.

    Attributes:
        policy: for rows that are empty, are longer than the budget or do not fit their mask:
            ``"error"`` raises, ``"skip"`` leaves them out, ``"truncate"`` cuts those that are too
            long. The loader's `screening` counts them.
        token_column: column of the tokens; by default ``tokens``, else ``input_ids``.
        loss_column: column with 0 or 1 per token, 1 where the loss counts it as a target.
        labels_column: column with a token id per token, -100 where the loss does not count it;
            label i stands at token i and the token before predicts it, as in Hugging Face's causal
            models. If a row has no column of the default name, its tokens are the labels; ``None``
            reads no labels. Must count the same targets as the `loss_column`, if both are there.
        position_column: column with the position of each token; by default they count from 0.
        extra_columns: columns with one number per token that come along in `LocalData.extra`:
            bool, any integers as int64, any floats as float32.
        unchecked_columns: columns that state neither documents nor what the loss counts, whatever
            they are called or hold: the loader refuses no row because nothing reads them.
        hidden_targets: for targets that do not see the token which should predict them, decided
            from the mask: ``"warn"`` leaves them out and says so once; ``"leave_out"`` leaves them
            out; ``"keep"`` trains on them. The loader's `screening` counts those left out.
        shared_targets: how often a token counts that several paths of a layout with branches
            share: ``"once"``, or once for each path, ``"per_path"``, as in separate sequences.
        path: path by which the ``for ... use`` of a spec finds a data set in memory.

    Raises:
        RunError: if `policy`, `hidden_targets` or `shared_targets` is none of its choices, or
            columns are not given by a tuple of names.
    """

    policy: RowPolicy = "error"
    token_column: str | None = None
    loss_column: str | None = None
    labels_column: str | None = "labels"
    position_column: str | None = None
    extra_columns: Sequence[str] = ()
    unchecked_columns: Sequence[str] = ()
    hidden_targets: HiddenTargets = "warn"
    shared_targets: SharedTargets = "once"
    path: str = ""

    def __post_init__(self) -> None:
        _check_choice("RowRules.policy", self.policy, RowPolicy)
        _check_choice("RowRules.hidden_targets", self.hidden_targets, HiddenTargets)
        _check_choice("RowRules.shared_targets", self.shared_targets, SharedTargets)
        for name in ("extra_columns", "unchecked_columns"):
            names = getattr(self, name)
            if isinstance(names, str) or not all(isinstance(each, str) for each in names):
                raise RunError(
                    f"RowRules.{name}: expected a tuple of names, got {names!r:.60}; one column is "
                    '("advantages",)'
                )
            settle(self, **{name: tuple(dict.fromkeys(names))})


@dataclass(frozen=True, slots=True)
class Planning:
    """The model and the machine that batches are planned for, and the options of planning.

    Attributes:
        shape: heads of the attention layer on one rank.
        cluster: devices of all replicas, replica after replica; by default a single node with a
            device for every rank, of the preset for these GPUs, or of `cpu-gloo`.
        config: how to plan, head groups included.
        block_size: most tokens per planning block; by default chosen for every batch, so that
            whole blocks fill every rank's share.
        group: the ranks that the batches are for; ``None`` for all. A group, or a `DeviceMesh` of
            one dim: ranks of one replica. A `DeviceMesh` of several named dims: ``cp`` holds the
            ranks of a replica, ``dp...`` the replicas; ranks along other dims, such as ``tp``, get
            equal parts.
        rank: whose part is yielded, counted over all replicas; by default that of this process,
            else 0.
        model: the layers around attention, whose time counts when rows are dealt to micro-batches;
            by default a transformer as wide as the heads: 12 width² parameters a layer, at the rate
            of attention.
        rates: the cluster, with the rates that `DCPExecutor(rates=...)` measures; in place of
            `cluster`, for one replica.

    Raises:
        RunError: if the block size is not at least 1, or both `cluster` and `rates` are given.
    """

    shape: ModelShape = field(default_factory=ModelShape)
    cluster: Cluster | None = None
    config: PlanConfig = field(default_factory=PlanConfig)
    block_size: int | None = None
    group: Group | None = None
    rank: int | None = None
    model: StepModel | None = None
    rates: DeviceRates | None = None

    def __post_init__(self) -> None:
        if self.rates is not None:
            if self.cluster is not None:
                raise RunError(
                    "Planning.cluster: expected None where rates are given, which hold the "
                    "cluster: DeviceRates(cluster)"
                )
            settle(self, cluster=self.rates.cluster)
        if self.block_size is not None:
            check_count("Planning.block_size", self.block_size, 1)


@dataclass(frozen=True, slots=True)
class LookAhead:
    """Choices of planning ahead of the training loop.

    Attributes:
        batches: how many global batches (windows of them) ahead.
        processes: processes that plan them; 0 plans in this process, when a batch is needed. By
            default 1 where a core is left for it, else 0.
        planner: ``"each"`` rank makes the same plan itself, or the ``"first"`` rank of the group
            makes it and sends every rank its part.

    Raises:
        RunError: if a number is negative or no integer, or there is no such planner.
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
        # torchrun says how many ranks share this machine; without it, all ranks may.
        told = os.environ.get("LOCAL_WORLD_SIZE", "")
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if told.isdecimal() and int(told) > 0:
            ranks = int(told)
        planners = ranks if self.planner == "each" else 1
        return int(self.batches > 0 and len(os.sched_getaffinity(0)) >= ranks + planners)


def check_kinds(**choices: object) -> None:
    """Refuse a group of choices that is of another kind than its name says."""
    kinds = {"packing": Packing, "rows": RowRules, "planning": Planning, "look_ahead": LookAhead}
    for name, given in choices.items():
        kind = kinds[name]
        if not isinstance(given, kind):
            raise RunError(
                f"{name}: expected a {kind.__name__}, got {given!r:.60}; give {name}="
                f"{kind.__name__}(...), which holds the choices of this kind"
            )


def check_count(name: str, value: object, least: int) -> None:
    """Refuse a value that is not an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RunError(f"{name}: expected at least {least}, got {value!r}")


def _check_choice(name: str, value: object, choices: Any) -> None:  # Any: a Literal
    if value not in get_args(choices):
        raise RunError(f"{name}: expected one of {', '.join(get_args(choices))}, got {value!r}")


CONTEXT_DIM, REPLICA_DIMS = "cp", "dp"
"""Name of a mesh's dim with the ranks of a replica, and beginning of names of dims of replicas."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """Ranks by replica. Device ``r * context_ranks + c`` is rank c of replica r."""

    count: int
    context_ranks: int
    device: int  # this rank, counted over all replicas
    cluster: Cluster
    group: dist.ProcessGroup | None  # of this replica; None: all ranks, or unknown

    @property
    def replica(self) -> int:
        """This rank's replica."""
        return self.device // self.context_ranks


def find_replicas(packing: Packing, planning: Planning) -> Replicas:
    """Find the replicas that a user's choices name."""
    mesh = planning.group
    if isinstance(mesh, DeviceMesh) and mesh.ndim > 1:
        count, context_ranks, device = _of_mesh(mesh, packing.replicas)
        ranks, group = count * context_ranks, process_group(mesh[CONTEXT_DIM])
    else:
        count, group = packing.replicas or 1, process_group(mesh)
        is_alone = not dist.is_initialized()
        device = 0 if is_alone else dist.get_rank(group)
        ranks = 1 if is_alone else dist.get_world_size(group)
        if planning.cluster is not None:  # one process may ask for the part of any rank
            ranks = planning.cluster.num_devices
        if group is not None and count > 1:
            raise RunError(
                f"Packing.replicas: {count} replicas, but Planning.group holds the ranks of one; "
                "give the DeviceMesh of all of them, with dims named dp and cp"
            )
        if ranks % count:
            fits = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
            raise RunError(
                f"Packing.replicas: expected a divisor of the {ranks} ranks, got {count}; "
                f"{ranks} ranks are {fits} replicas"
            )
        context_ranks = ranks // count
    if planning.rates is not None and count > 1:
        raise RunError(
            f"Planning.rates: expected one replica, whose ranks compare what they measured, got "
            f"{count} replicas; leave rates out"
        )
    cluster = planning.cluster or cluster_of_ranks(ranks, group)
    if cluster.num_devices != ranks:
        raise RunError(
            f"Planning.cluster: expected the {ranks} devices of {count} replicas of "
            f"{context_ranks} ranks, got {cluster.num_devices}"
        )
    device = device if planning.rank is None else planning.rank
    if not 0 <= device < ranks:
        raise RunError(
            f"expected a rank from 0 to {ranks - 1}, the devices of the cluster, got {device}; "
            "give Planning the cluster of all ranks that share the batches, and the rank among "
            "these"
        )
    return Replicas(count, context_ranks, device, cluster, group)


def _of_mesh(mesh: DeviceMesh, replicas: int | None) -> tuple[int, int, int]:
    """Return replicas, ranks of each and the device of this rank."""
    names = mesh.mesh_dim_names
    if names is None:
        raise RunError(
            f"Planning.group: expected a DeviceMesh with named dims, got {mesh.ndim} dims without "
            f"names; init_device_mesh(..., mesh_dim_names=('dp', 'cp')): {CONTEXT_DIM} are the "
            f"ranks of a replica, {REPLICA_DIMS}... the replicas"
        )
    if CONTEXT_DIM not in names:
        raise RunError(
            f"Planning.group: expected a DeviceMesh with a dim {CONTEXT_DIM!r}, whose ranks share "
            f"the attention, got the dims {', '.join(names)}; pass that dim alone if it has "
            "another name, or name it so"
        )
    world = dist.get_world_size()
    if mesh.size() != world:
        raise RunError(
            f"Planning.group: expected a mesh of all {world} ranks, got one of "
            f"{' x '.join(map(str, mesh.shape))} = {mesh.size()}; start {mesh.size()} ranks, or "
            f"give sizes whose product is {world}"
        )
    # Dims of replicas count like digits of a number; other dims, such as tp, get equal batches.
    count, own = 1, 0
    for name, size in zip(names, mesh.shape, strict=True):
        if name.startswith(REPLICA_DIMS):
            count, own = count * size, own * size + mesh.get_local_rank(name)
    if replicas not in (None, count):
        raise RunError(
            f"Packing.replicas: expected {count}, as the dims {', '.join(names)} of the mesh say, "
            f"got {replicas}; leave it out"
        )
    context_ranks = mesh.size(names.index(CONTEXT_DIM))
    return count, context_ranks, own * context_ranks + mesh.get_local_rank(CONTEXT_DIM)


def dealing_of(packing: Packing, planning: Planning, replicas: Replicas) -> Dealing:
    """Return how a global batch is dealt to micro-batches and devices."""
    own, devices = replicas.context_ranks, replicas.count * replicas.context_ranks
    widths = {"replica": {own}, "all": {devices}}.get(str(packing.group), {own, devices})
    # On a single device every document has width 1: one group needs no plans to be joined.
    is_spread = packing.width == "per_document" and devices > 1
    if is_spread and planning.config.partitioner.startswith("static:heads"):
        raise RunError(
            "Packing.width: 'per_document' joins plans that keep all heads of a tile on one "
            f"device: expected another PlanConfig.partitioner than those that split heads, got "
            f"{planning.config.partitioner!r}; take 'portfolio' or 'static:zigzag'"
        )
    # A transformer as wide as its heads: matrices of 4 width² parameters around attention, 8 in the
    # feed-forward part, 2 FLOPs each in forward and 4 in backward, at the rate of attention.
    shape, rate = planning.shape, replicas.cluster.flops_per_s
    parameters = 12 * (shape.q_heads * shape.head_dim) ** 2
    like_heads = StepModel(shape, 1, 6.0 * parameters, 2.0 * parameters, rate)
    return Dealing(
        replicas=replicas.count,
        context_ranks=own,
        micro_batches=packing.micro_batches,
        window=1,
        token_budget=packing.token_budget,
        widths=() if is_spread else tuple(sorted(widths)),
        balance=packing.balance,
        model=planning.model or like_heads,
    )
