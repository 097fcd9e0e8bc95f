"""By which count are losses divided: of all ranks and micro-batches, or of fewer, or more?"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcp_runtime.auditing.findings import AuditFinding, note, right
from dcp_runtime.auditing.record import Run

SAME = 2e-3  # relative difference up to which two divisors are the same


def check_loss(run: Run, step: int, *, are_copies: bool) -> AuditFinding:
    """Find the count by which the losses of a step are divided."""
    found = [
        (rank, n, each.divisor, each.count, each.line)
        for rank, n, each in run.micro_batches(step)
        if each.count and not (are_copies and rank)
    ]
    divisors = np.array([divisor or 0.0 for _, _, divisor, *_ in found])
    counts = np.array([count for *_, count, _ in found], float)
    if not len(found) or not divisors.all():
        return note(
            "loss", "unseen", "the loss is no cross entropy of token ids that is seen, so nothing "
            "tells by which count it is divided",
        )  # fmt: skip
    of_rank, of_batch = np.array([rank for rank, *_ in found]), np.array([n for _, n, *_ in found])
    whole, when = counts.sum(), f"step {step + 1}: divided by"
    shares = {
        "each rank's targets of a micro-batch": counts,
        "each rank's targets of the step": _sums(counts, of_rank),
        "the targets of all ranks in a micro-batch": _sums(counts, of_batch),
    }
    for what, share in shares.items():
        if _are_alike(divisors / share) and not _are_alike(share):
            is_rank = len(set(of_batch)) == 1 or "step" in what
            return AuditFinding(
                "loss", "divided by local targets" if is_rank
                else "divided by the targets of each micro-batch",
                f"{when} {what}, {', '.join(f'{n:g}' for n in share[:4])}, so that targets count "
                f"differently; all are {whole:g}",
                f"{found[0][-1]}: sum the losses of targets, and divide by the targets of all "
                "ranks and micro-batches: next_token_loss(logits, local_data), or all_reduce them",
            )  # fmt: skip
    if not _are_alike(divisors):
        return note("loss", "unlike", f"{when} {', '.join(f'{n:.4g}' for n in divisors[:4])}")
    known = {
        "all targets": whole, f"the {whole:g} targets of all ranks / {run.ranks} ranks":
        whole / run.ranks,
    } | {f"{what}, equally many here": share[0] for what, share in shares.items()}  # fmt: skip
    by = (what for what, count in known.items() if abs(divisors[0] - count) <= SAME * count)
    return right("loss", f"{when} {divisors[0]:.4g}, {next(by, 'no count of targets')}")


def check_accumulation(alone: Run, step: int, factor: float) -> Iterable[AuditFinding]:
    """Compare the loss of a step with the mean over its micro-batches, all on one process."""
    # The script multiplies gradients by `factor` after its backwards.
    batches = [each for _, _, each in alone.micro_batches(step) if each.count]
    shares = [each.count * factor / each.divisor for each in batches if each.divisor]
    number, times = len(batches), sum(shares)  # times the mean over all targets
    # Several losses of the same tokens are not several micro-batches.
    inputs = {each.ids.tobytes() for each in batches if each.ids is not None}
    if number < 2 or len(shares) < number or len(inputs) < number:
        return
    when = f"step {step + 1} has {number} micro-batches"
    if abs(times * number - 1) <= SAME:
        yield AuditFinding(
            "loss", "divided twice", f"{when}: losses are divided by the targets of all of them, "
            f"and by {number} once more: gradients are 1/{number} of those of the mean",
            f"{batches[0].line}: leave out the division by {number}, the number of micro-batches",
            ratio=times,
        )  # fmt: skip
    elif abs(times - number) <= SAME * number:
        yield AuditFinding(
            "loss", "means added up", f"{when}: each loss is a mean over its own targets, and "
            f"nothing divides by their number: gradients are {number} times those of the mean",
            f"{batches[0].line}: divide the sum of the losses by the targets of all micro-batches; "
            f"of equally long ones, the loss by {number}", ratio=times,
        )  # fmt: skip


def _sums(counts: NDArray[Any], of: NDArray[Any]) -> NDArray[Any]:
    return np.array([counts[of == each].sum() for each in of])


def _are_alike(values: NDArray[Any]) -> bool:
    return bool(np.ptp(values) <= SAME * np.abs(values).max())
