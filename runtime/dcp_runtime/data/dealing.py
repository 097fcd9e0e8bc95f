"""Deal the documents of a global batch to micro-batches and groups of devices.

This module does not import torch: planner processes load it, and must start fast.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from dcp_dsl import pack
from dcp_dsl.arrays import Floats
from dcp_planner import Cluster, ModelShape
from dcp_planner.step import Assignment, Documents, StepMesh, StepModel, StepSetting, plan_step

Balance: TypeAlias = Literal["work", "order"]


@dataclass(frozen=True, slots=True)
class Dealing:
    """The choices by which documents of global batches are dealt.

    If `widths` are empty, each document has a width of its own, which may be any.
    """

    replicas: int
    context_ranks: int  # devices of replica r begin at r * context_ranks
    micro_batches: int  # of each replica, in all global batches together
    window: int  # global batches that are dealt together
    token_budget: int  # of a replica in a micro-batch
    widths: tuple[int, ...]  # of groups, in devices, rising
    balance: Balance  # by work, or packs in turn
    model: StepModel  # costs of a token and of an attention layer

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Dealing":  # Any: a JSON document
        """Read the JSON document of ``asdict``."""
        model = {**values["model"], "shape": ModelShape(**values["model"]["shape"])}
        given = {**values, "widths": tuple(values["widths"]), "model": StepModel(**model)}
        return cls(**given)

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.context_ranks

    @property
    def widest(self) -> int:
        """Devices of the widest group."""
        return max(self.widths, default=self.devices)

    @property
    def is_trivial(self) -> bool:
        """True if all documents share one micro-batch and the same devices."""
        return self.micro_batches == 1 and self.widths == (self.devices,)

    @property
    def packs(self) -> int:
        """Packs that fill all groups in all micro-batches, if groups are as wide as possible."""
        return self.micro_batches * (self.devices // self.widest)

    def over(self, window: int) -> "Dealing":
        """Return how several global batches are dealt together."""
        return replace(self, window=window, micro_batches=self.micro_batches * window)

    def room(self, width: int) -> int:
        """Return the most tokens of a group in a micro-batch."""
        return self.token_budget * width // self.context_ranks

    @property
    def way_out(self) -> str:
        """Advice for a document that no group can hold."""
        if self.replicas == 1:
            return "raise the budget"
        if self.widest == self.devices:
            return (
                f"all {self.devices} ranks together hold no more in a micro-batch: raise "
                f"token_budget={self.token_budget}, which is that of one of {self.replicas} "
                "replicas"
            )
        return (
            f"raise the budget, or spread rows over all {self.devices} ranks with "
            f"Packing(group='all'), which hold {self.room(self.devices)} tokens"
        )

    @property
    def name(self) -> str:
        """All choices as text, to compare with those of a saved state."""
        return repr(sorted(asdict(self).items()))


@dataclass(frozen=True, slots=True)
class Share:
    """Documents that devices ``first`` to ``first + width - 1`` compute in a micro-batch."""

    documents: tuple[int, ...]  # their numbers, rising
    first: int
    width: int


def deal_documents(
    dealing: Dealing, tokens: Sequence[int], pairs: Callable[[], Floats], cluster: Cluster
) -> tuple[list[list[Share]], int]:
    """Choose micro-batch and devices of every document, in packed order; deterministic.

    The micro-batches of a global batch are neighbours. `pairs` returns the visible pairs of each
    document, as a mean over the layers; it is called only where work counts. Returns for each
    micro-batch its shares, by their first device (a group without documents has none), and how many
    tokens a replica would have got by work, if more than its budget: packs were dealt in turn then.
    """
    # The case of most loaders, which needs no pairs to be counted.
    if dealing.is_trivial:
        return [[Share(tuple(range(len(tokens))), 0, dealing.devices)]], 0
    overflow = 0
    # `plan_step` refuses fewer documents than micro-batches; in turn, some stay empty.
    if dealing.balance == "order" or len(tokens) < dealing.micro_batches:
        assignment = _in_turn(dealing, tokens)
    else:
        setting = StepSetting(
            _mesh(dealing), dealing.model, cluster, dealing.token_budget,
            widths=dealing.widths or None,
        )  # fmt: skip
        counted = Documents(np.asarray(tokens, np.int64), pairs())
        assignment = plan_step(counted, setting).assignment
        overflow = _overflow(dealing, tokens, assignment)
        if overflow:
            assignment = _in_turn(dealing, tokens)
    found: list[list[Share]] = [[] for _ in range(dealing.micro_batches)]
    for micro_batch, first, width, documents in assignment.groups():
        found[micro_batch].append(Share(tuple(documents.tolist()), first, width))
    return [found[number] for number in _order(dealing)], overflow


def _overflow(dealing: Dealing, tokens: Sequence[int], assignment: Assignment) -> int:
    """Return the tokens of the fullest replica if they exceed the budget, else 0."""
    # The fullest device stands for its replica: as if the others held as many.
    held, lengths = np.zeros((dealing.micro_batches, dealing.devices)), np.asarray(tokens)
    for micro_batch, first, width, rows in assignment.groups():
        held[micro_batch, first : first + width] += lengths[rows].sum() / width
    most = float(held.max()) * dealing.context_ranks
    # Shares of a document over devices are fractions, whose sum may be a hair off.
    return math.ceil(most) if most > dealing.token_budget * (1 + 1e-9) else 0


def _in_turn(dealing: Dealing, tokens: Sequence[int]) -> Assignment:
    """Deal packs in turn: pack k is micro-batch ``k // groups`` of group ``k % groups``."""
    # The documents come from packs that fit the step, in the same order. Closing a pack when the
    # next document does not fit needs the fewest packs that keep the order, so these fit the step,
    # too.
    width = dealing.widest
    groups = dealing.devices // width
    number = np.empty(len(tokens), np.int64)
    for place, rows in enumerate(pack(tokens, dealing.room(width))):
        number[list(rows)] = place
    return Assignment(
        _mesh(dealing),
        (number // groups).astype(np.int32),
        (number % groups * width).astype(np.int32),
        np.full(len(tokens), width, np.int32),
    )


def _mesh(dealing: Dealing) -> StepMesh:
    return StepMesh(dealing.replicas, dealing.context_ranks, dealing.micro_batches)


def _order(dealing: Dealing) -> list[int]:
    """List the micro-batches, global batch after global batch."""
    # Dealing by work puts long micro-batches first. Each global batch of a window gets every
    # `window`-th of them, and the order of the batches is shuffled: else batches would get shorter
    # and shorter inside a window.
    steps = np.random.default_rng(dealing.window).permutation(dealing.window).tolist()
    return [n for step in steps for n in range(step, dealing.micro_batches, dealing.window)]


def sub_cluster(cluster: Cluster, first: int, width: int) -> Cluster:
    """Return the cluster of the devices ``first`` to ``first + width - 1``, on their nodes.

    >>> found = sub_cluster(Cluster(4, 8), 16, 16)
    >>> found.nodes, found.devices_per_node, sub_cluster(Cluster(2, 3), 2, 2).nodes
    (2, 8, 2)
    """
    node = cluster.node_of_device[first : first + width]
    speed = cluster.speed_of_device[first : first + width]
    devices = tuple(tuple(speed[node == own].tolist()) for own in np.unique(node))
    inside = range(first, first + width)
    return replace(
        cluster,
        nodes=len(devices),
        devices_per_node=max(map(len, devices)),
        devices=devices,
        slow_ports=tuple((d - first, share) for d, share in cluster.slow_ports if d in inside),
    )
