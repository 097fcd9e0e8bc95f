"""The results of ranks, as bytes between their processes and `run_plan`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RankResult:
    """What one rank has to tell of a run.

    Attributes:
        prepare_s: seconds that it took to make the plan ready.
        clock_uncertainty_s: how far the clocks of two ranks may be apart in the trace.
        tensors: a ``.npz`` of its outputs and gradients, empty unless they were asked for.
        trace: a plan file with the measured trace of all ranks; empty but on rank 0.
    """

    prepare_s: float
    clock_uncertainty_s: float = 0.0
    tensors: bytes = b""
    trace: bytes = b""


def pack_results(results: Sequence[RankResult]) -> tuple[dict[str, Any], bytes]:
    """Return the results of the ranks of one process as JSON values and bytes."""
    rows = [(r.prepare_s, r.clock_uncertainty_s, len(r.tensors), len(r.trace)) for r in results]
    return {"results": rows}, b"".join(part for r in results for part in (r.tensors, r.trace))


def unpack_results(answer: Mapping[str, Any], blob: bytes) -> list[RankResult]:
    """Read what `pack_results` returned."""
    found, at = [], 0
    for prepare_s, uncertainty_s, tensors_size, trace_size in answer["results"]:
        middle = at + tensors_size
        end = middle + trace_size
        found.append(RankResult(prepare_s, uncertainty_s, blob[at:middle], blob[middle:end]))
        at = end
    return found
