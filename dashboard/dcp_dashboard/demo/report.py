"""Results of the demonstration as values: printed as tables for people, as JSON for programs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it would import torch
    from dcp_runtime import TensorError

SCHEMA = "dcp.demo/1"
KNOWN_LAYOUTS = ("static:zigzag", "static:contiguous")
"""Layouts that the tables always show, because other systems use them."""


@dataclass(frozen=True, slots=True)
class MethodReport:
    """One placement of one batch: bytes, max/mean over devices, caps exceeded, simulated time."""

    method: str
    bytes_forward: int
    bytes_backward: int
    bytes_between_nodes: int
    compute_imbalance: float
    token_imbalance: float
    over_caps: tuple[str, ...]
    predicted_s: float


@dataclass(frozen=True, slots=True)
class BatchReport:
    """One packed batch: its block sparsity, and how each method placed it.

    Attributes:
        plan: file name of the plan of the first method.
        density: `pairs` as a share of those that a causal mask leaves visible.
        sparsity: share of all pairs within sequences that is not visible.
        full_blocks, partial_blocks, empty_blocks: of all blocks within sequences.
        compile_s: seconds from samples to block sparsity.
        methods: the planner's default first, then KaHyPar if it is installed, then all layouts.
        best_static: name of the fastest static layout ``of_all``, and of the fastest
            ``within_token_cap`` if one holds it.
    """

    plan: str
    tokens: int
    sequences: int
    block_size: int
    nodes: int
    devices: int
    pairs: int
    density: float
    sparsity: float
    full_blocks: int
    partial_blocks: int
    empty_blocks: int
    compile_s: float
    methods: tuple[MethodReport, ...]
    best_static: Mapping[str, str]

    @property
    def shown(self) -> tuple[MethodReport, ...]:
        """The methods with a line of their own: planners, layouts in use, the best layouts."""
        names = {*KNOWN_LAYOUTS, *self.best_static.values()}
        return tuple(
            method
            for method in self.methods
            if not method.method.startswith("static:") or method.method in names
        )


@dataclass(frozen=True, slots=True)
class MaskResult:
    """One mask on one data set: a large batch planned, a small one planned, run and verified.

    Attributes:
        verified: whether every error is within twice that of eager attention.
        errors: of out, dq, dk and dv, beside those of eager attention of the same dtype.
        measured_s: seconds of forward and backward on real processes.
        exposed_s: the part of them that the rank which waited longest stood still.
    """

    mask: str
    dataset: str
    planned: BatchReport
    executed: BatchReport
    verified: bool
    errors: "tuple[TensorError, ...]"
    measured_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All masks, in the order of the spec.

    Attributes:
        folder: where plans and data lie.
        documents: files of the standard library that became the data set.
        seconds: of the whole demonstration, without compiling the planner.
        compile_s: seconds of compiling the planner, once per installation.
    """

    folder: str
    ranks: int
    documents: int
    seconds: float
    masks: tuple[MaskResult, ...]
    compile_s: float = 0.0

    @property
    def verified(self) -> bool:
        """Return whether every mask was verified."""
        return all(mask.verified for mask in self.masks)

    def to_json(self, url: str | None) -> dict[str, Any]:  # Any: a JSON document
        """Return the report as a JSON document; `url` is the dashboard's, if served."""
        return {"schema": SCHEMA, "verified": self.verified, "url": url, **asdict(self)}
