"""The record of one training step: what was planned, what the ranks measured, who was slowest."""

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple, TypeAlias

SCHEMA = "dcp.run_log/1"

Record: TypeAlias = dict[str, Any]  # Any: fit for JSON

NUMBERS = (
    "at", "step_s", "predicted_s", "measured_s", "attention_s", "other_s", "waiting_s", "idle_s",
    "exposed_share", "tokens", "token_imbalance", "compute_imbalance", "attention_imbalance",
    "bytes", "planning_s", "waited_s", "queued", "lost", "skipped", "slowest",
)  # fmt: skip
"""Numbers of a record, ``None`` where nobody knows them; seconds end in ``_s``."""
TEXTS = ("name", "digest", "cause", "why", "trace")

EVEN = 1.05
"""Ranks that compute at most this much longer than their mean count as equally long."""


class RankTotals(NamedTuple):
    """Work and times of one rank in a step, all its layers together.

    Attributes:
        step_s: from `prepare` of the batch to the next `prepare`.
        work: visible pairs that it computed, forward.
        attention_s, other_s: in attention; in reductions, copies and launches. ``None`` where only
            the device knows, and nothing was recorded there.
        waiting_s: it stood still for messages.
        late_rank, late_s: rank whose messages it waited for longest, -1 for none, and how long.
    """

    step_s: float
    work: int
    attention_s: float | None = None
    other_s: float = 0.0
    waiting_s: float = 0.0
    late_rank: int = -1
    late_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Seconds of its attention calls in which it did not wait."""
        return (self.attention_s or 0.0) + self.other_s


class PlanFacts(NamedTuple):
    """A plan in numbers, one layer of it: forward and backward where there are two.

    Attributes:
        size_bytes: between devices.
        most_work, mean_work: visible pairs of the fullest device, and of all in the mean.
        most_tokens, mean_tokens: tokens of the device that owns most, and of all in the mean.
        predicted_s: empty if nobody predicted them.
    """

    size_bytes: tuple[int, int]
    most_work: int
    mean_work: float
    most_tokens: int
    mean_tokens: float
    predicted_s: tuple[float, ...] = ()


def planned_figures(facts: Sequence[PlanFacts], calls: Sequence[tuple[int, int]]) -> Record:
    """Add up what the plans of a batch foresee, for so many forward and backward calls of each."""
    called = list(zip(facts, calls, strict=True))
    found: Record = {
        "bytes": sum(n * size for f, c in called for n, size in zip(c, f.size_bytes, strict=True)),
        "token_imbalance": _ratio(facts[0].most_tokens, facts[0].mean_tokens),
        "compute_imbalance": _ratio(
            sum(c[0] * f.most_work for f, c in called), sum(c[0] * f.mean_work for f, c in called)
        ),
    }
    if all(f.predicted_s for f in facts):
        found["predicted_s"] = sum(
            n * s for f, c in called for n, s in zip(c, f.predicted_s, strict=True)
        )
    return found


def measured_figures(totals: Sequence[RankTotals]) -> Record:
    """Put the totals of all ranks together.

    ``measured_s`` is the time that the slowest rank spent in attention calls. The means over the
    ranks of ``attention_s``, ``other_s``, ``waiting_s`` and ``idle_s`` add up to it; a rank is idle
    once its calls are done and before those of the slowest one are.
    """
    found: Record = {"step_s": max((t.step_s for t in totals), default=None)}
    if not totals or any(t.attention_s is None for t in totals):
        return found
    calls = [t.busy_s + t.waiting_s for t in totals]
    attention = [t.attention_s or 0.0 for t in totals]
    measured = max(calls)
    shares = [t.waiting_s / c for t, c in zip(totals, calls, strict=True) if c]
    found |= {
        "measured_s": measured,
        "attention_s": fmean(attention),
        "other_s": fmean(t.other_s for t in totals),
        "waiting_s": fmean(t.waiting_s for t in totals),
        "idle_s": measured - fmean(calls),
        "exposed_share": max(shares, default=0.0),
        "attention_imbalance": _ratio(max(attention), fmean(attention)),
    }
    return found | explain(totals)


def explain(totals: Sequence[RankTotals]) -> Record:
    """Name the rank that the others wait for, and why.

    >>> explain([RankTotals(1, 10, 0.2, 0, 0.2, 1, 0.2), RankTotals(1, 30, 0.6)])["why"]
    'rank 1 has 1.50 times the mean work'
    """
    busy = [t.busy_s for t in totals]
    slowest = busy.index(max(busy))
    longer = _ratio(busy[slowest], fmean(busy))
    if longer <= EVEN:
        waits = max(range(len(totals)), key=lambda rank: totals[rank].waiting_s)
        late, late_s = totals[waits].late_rank, totals[waits].late_s
        if late < 0 or late_s <= (EVEN - 1) * (totals[waits].busy_s + totals[waits].waiting_s):
            return {"slowest": slowest, "cause": "even", "why": "all ranks compute equally long"}
        why = f"rank {waits} waits most, for messages of rank {late}; all compute equally long"
        return {"slowest": late, "cause": "messages", "why": why}
    share = _ratio(totals[slowest].work, fmean(t.work for t in totals))
    others = [t.busy_s / t.work for n, t in enumerate(totals) if t.work and n != slowest]
    rate = _ratio(busy[slowest], totals[slowest].work)
    slower = _ratio(rate, median(others)) if others else 1.0
    if share >= slower:
        cause, why = "work", f"rank {slowest} has {share:.2f} times the mean work"
    else:
        why = f"rank {slowest} takes {slower:.2f} times as long as the others for the same work"
        cause = "rate"
    return {"slowest": slowest, "cause": cause, "why": why}


def as_record(step: int, figures: Mapping[str, Any]) -> Record:
    """Return a record with every field, in order, numbers to six digits."""
    found: Record = {"step": step}
    for name in (*NUMBERS, *TEXTS):
        value = figures.get(name)
        is_long = isinstance(value, float) and name != "at"
        found[name] = float(f"{value:.6g}") if is_long else value
    return found


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
