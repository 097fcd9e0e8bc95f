"""The setting of a step: documents, mesh and model; and the devices assigned to each document."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from dcp_dsl.arrays import Floats, Indices, Ints, Record
from dcp_planner.errors import PlanError, nearest
from dcp_planner.model.cluster import ModelShape


@dataclass(frozen=True, slots=True, eq=False)
class Documents(Record):
    """Lengths and visible pairs, one row a document.

    >>> Documents.causal([3, 2]).pairs.tolist()
    [6.0, 3.0]
    """

    tokens: Annotated[Ints, "N"]  # tokens of each document, int64 `[N]`, at least 1
    # visible pairs of each document in one layer, the mean over a stack's layers, float64 `[N]`
    pairs: Annotated[Floats, "N"]

    def _check(self) -> None:
        if np.any(self.tokens < 1):
            place = int(np.argmax(self.tokens < 1))
            raise PlanError(
                f"document {place}: expected at least 1 token, got {self.tokens[place]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def causal(cls, lengths: Ints | list[int]) -> "Documents":
        """Build documents under a causal mask each."""
        tokens = np.asarray(lengths, np.int64)
        return cls(tokens, tokens * (tokens + 1) / 2.0)


@dataclass(frozen=True, slots=True)
class StepMesh:
    """Devices and micro-batches of a step.

    >>> StepMesh(8, 8, micro_batches=4).devices
    64
    """

    # data-parallel replicas; in today's recipes each runs one pack of documents in a micro-batch
    replicas: int
    context_ranks: int  # devices of a replica: the ranks of its context parallelism
    micro_batches: int = 1  # micro-batches of a step
    stages: int = 1  # pipeline stages; each has `replicas * context_ranks` devices

    def __post_init__(self) -> None:
        for name in ("replicas", "context_ranks", "micro_batches", "stages"):
            if getattr(self, name) < 1:
                raise PlanError(f"StepMesh.{name}: expected at least 1, got {getattr(self, name)}")

    @property
    def devices(self) -> int:
        """Devices of one pipeline stage."""
        return self.replicas * self.context_ranks


@dataclass(frozen=True, slots=True, eq=False)
class Assignment(Record):
    """Micro-batch and devices of every document.

    A document runs on the devices ``first`` to ``first + width - 1`` of each pipeline stage.
    Documents of one micro-batch with the same devices form a group: one attention plan.
    """

    mesh: StepMesh  # devices and micro-batches
    # micro_batch, first, width: int32 `[N]`
    micro_batch: Annotated[Indices, "N"]
    first: Annotated[Indices, "N"]
    width: Annotated[Indices, "N"]

    def _check(self) -> None:
        outside = (
            (self.micro_batch < 0)
            | (self.micro_batch >= self.mesh.micro_batches)
            | (self.first < 0)
            | (self.width < 1)
            | (self.first + self.width > self.mesh.devices)
        )
        if outside.any():
            raise PlanError(
                f"document {int(np.argmax(outside))} is outside the mesh of {self.mesh.devices} "
                f"devices and {self.mesh.micro_batches} micro-batches"
            )

    def groups(self) -> Iterator[tuple[int, int, int, Ints]]:
        """Yield each group: micro-batch, first device, width, its documents in their order."""
        keys = np.stack([self.micro_batch, self.first, -self.width])  # of one begin, wide first
        order = np.lexsort(keys[::-1])  # the last key is the first to sort by
        changes = np.flatnonzero(np.any(np.diff(keys[:, order], axis=1) != 0, axis=0)) + 1
        # `np.split` of nothing would be one empty group.
        for rows in np.split(order, changes) if len(order) else ():
            row = rows[0]
            yield (
                int(self.micro_batch[row]),
                int(self.first[row]),
                int(self.width[row]),
                np.sort(rows).astype(np.int64),
            )


@dataclass(frozen=True, slots=True)
class StepModel:
    """Costs of one token and of one attention layer, as far as a step's time needs them.

    >>> llama = step_model("llama-8b")
    >>> llama.layers, round(1e6 * llama.linear_seconds(1))
    (32, 83)
    """

    shape: ModelShape  # heads of every attention layer
    layers: int  # layers with attention; others count in `linear_flops` only
    # FLOPs of a token outside attention, forward and backward of all layers together
    linear_flops: float
    parameter_bytes: float  # bytes that a replica's devices synchronise in each direction
    matmul_flops_per_s: float  # FLOPs per second that one device sustains in the linear part

    def __post_init__(self) -> None:
        for name in ("layers", "linear_flops", "parameter_bytes", "matmul_flops_per_s"):
            if not getattr(self, name) > 0:
                raise PlanError(
                    f"StepModel.{name}: expected more than 0, got {getattr(self, name)!r}"
                )

    @property
    def token_seconds(self) -> float:
        """Seconds of the linear part of a token for one attention layer, both directions."""
        return self.linear_seconds(1) / self.layers

    def with_heads(self, shape: ModelShape) -> "StepModel":
        """Return the share of the model on a device with these heads (tensor parallelism).

        The linear part and the parameters are divided like the query heads.
        """
        share = shape.q_heads / self.shape.q_heads
        return replace(
            self, shape=shape, linear_flops=share * self.linear_flops,
            parameter_bytes=share * self.parameter_bytes,
        )  # fmt: skip

    def linear_seconds(self, tokens: float) -> float:
        """Compute the seconds of the linear part of `tokens` on one device, both directions."""
        return tokens * self.linear_flops / self.matmul_flops_per_s


MATMUL_PEAK = {"a100": 312e12, "h100": 989e12, "h200": 989e12, "b200": 2250e12}
"""Dense bfloat16 FLOPs per second of a device, from NVIDIA's data sheets."""
MATMUL_EFFICIENCY = 0.55
"""Share of the peak that the large products of training reach: an estimate."""
_SIZES: dict[str, tuple[float, int, tuple[int, int, int], float]] = {
    "llama-8b": (8.03e9, 32, (32, 8, 128), 7.5e9),
    "llama-70b": (70.6e9, 80, (64, 8, 128), 69.5e9),
    "gemma-3-12b": (12.2e9, 48, (16, 8, 256), 11.2e9),
}
"""Parameters, layers, heads (q, kv, dim), and parameters without the embedding table, from the
models' cards."""
MODELS = tuple(_SIZES)
"""Names of the presets of `step_model`."""


def step_model(name: str, device: str = "h100") -> StepModel:
    """Return a preset: 6 FLOPs a token and parameter outside the embedding (Kaplan et al. 2020)."""
    if name not in _SIZES:
        raise PlanError(
            f"expected a model out of {', '.join(_SIZES)}, got {name!r}{nearest(name, _SIZES)}"
        )
    # Clusters are named after their devices: `h100-dgx` has the peak of `h100`.
    peak = next((rate for key, rate in MATMUL_PEAK.items() if device.startswith(key)), None)
    if peak is None:
        raise PlanError(
            f"expected a device out of {', '.join(MATMUL_PEAK)}, got {device!r}; "
            "choose such a cluster (--cluster h100-dgx:1x8), name yours after one, or build a "
            "StepModel with its matmul_flops_per_s"
        )
    parameters, layers, heads, dense = _SIZES[name]
    return StepModel(
        shape=ModelShape(*heads),
        layers=layers,
        linear_flops=6 * dense,
        parameter_bytes=2 * parameters,  # of 16 bits
        matmul_flops_per_s=MATMUL_EFFICIENCY * peak,
    )
