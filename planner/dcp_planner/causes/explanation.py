"""Causes in words: why a plan takes its time, and why one of two plans of a batch is faster.

Time that two causes cost only together counts half for each of them (`Cause.part_s`). So the parts
of a time add up to the whole, except for time that three or more causes share.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from dcp_planner.causes.diagnosis import Cause, Diagnosis, Name, Why, diagnose
from dcp_planner.causes.path import STEPS
from dcp_planner.errors import PlanError
from dcp_planner.simulation.trace import EVENT_KINDS, LANES, Trace
from dcp_planner.tables.metrics import measure
from dcp_planner.tables.plan import Plan

TimeText: TypeAlias = Callable[[float], str]
ShareText: TypeAlias = Callable[[float], str]

NOUNS: Mapping[Name, str] = {
    "balance": "uneven compute",
    "waves": "kernels that leave multiprocessors idle",
    "tiles": "masked pairs that kernels compute anyway",
    "links": "data transfer",
    "latency": "message latency",
    "launches": "host work",
    "idle": "devices without work",
    "order": "waiting for earlier work of other devices",
    "memory": "freeing buffers early",
}
"""Causes as nouns: the time is lost to ..."""

CONDITIONS: Mapping[Name, str] = {
    "balance": "with compute shared evenly",
    "waves": "if kernels kept all multiprocessors busy",
    "tiles": "if kernels computed visible pairs only",
    "links": "with infinitely fast links",
    "latency": "without message latency",
    "launches": "without host work",
    "idle": "if devices without work took their share",
    "order": "if no device waited for earlier work of others",
    "memory": "without a memory limit",
}
"""The imagined condition without each cause, as the start of a sentence."""


def joined(parts: list[str]) -> str:
    """List parts as a sentence does."""
    return " and ".join(part for part in (", ".join(parts[:-1]), *parts[-1:]) if part)


def percent(share: float) -> str:
    """Write a share."""
    return f"{share:.1%}"


LEAST_SHARE = 0.01
"""Causes that save a smaller share of the time get no sentence."""


@dataclass(frozen=True, slots=True)
class PathLine:
    """A step of the critical path."""

    event: int  # row of the trace
    # start_s, seconds: when, and for how long
    start_s: float
    seconds: float
    share: float  # of the whole path
    step: str  # of `STEPS`
    text: str  # the step for people

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts and numbers."""
        return {name: getattr(self, name) for name in self.__slots__}


def three_sentences(
    why: Why, seconds: TimeText, share: ShareText = percent
) -> tuple[str, str, str]:
    """Describe in three sentences how a plan spends its time and which causes cost most."""
    total, causes = why.diagnosis.seconds, worth_saying(why.diagnosis)
    least = share(LEAST_SHARE)
    if not causes:
        first = f"No single cause costs more than {least} of the time: the rest is compute."
        return headline(why, seconds, share), first, "There is little left to gain."
    noun = NOUNS[causes[0].name]
    first = f"The largest cost comes from {noun}: {_would(causes[0], total, seconds, share)}"
    # Savings of single causes do not add up, so the sentence says `each removed alone`.
    told = joined([f"{NOUNS[cause.name]} ({seconds(cause.saves_s)})" for cause in causes[1:]])
    rest = f"The next costs, each removed alone: {told}. " if told else ""
    return headline(why, seconds, share), first, f"{rest}No other cost exceeds {least}."


def worth_saying(diagnosis: Diagnosis) -> tuple[Cause, ...]:
    """Keep the causes that save at least `LEAST_SHARE` of the time."""
    least = LEAST_SHARE * diagnosis.seconds
    return tuple(cause for cause in diagnosis.causes if cause.saves_s > least)


def headline(why: Why, seconds: TimeText, share: ShareText = percent) -> str:
    """Describe how devices spend the time; like `three_sentences`."""
    spent = why.accounting.shares()
    told = [
        f"{share(spent['computing'])} of this time on compute",
        f"{share(spent['reducing'])} on merging results",
        f"{share(spent['links'] + spent['latency'])} on waiting for messages",
        f"{share(spent['others'])} on waiting for compute of other devices",
        f"{share(spent['idle'])} idle after finishing",
    ]
    if spent["launches"] >= LEAST_SHARE:
        told.insert(2, f"{share(spent['launches'])} on host work")
    taken = f"The plan takes {seconds(why.diagnosis.seconds)}. Its devices spend {joined(told)}."
    # If nothing travels, the hidden share is 1, which says nothing.
    if not why.trace.size_bytes.any():
        return f"{taken} No data moves between devices."
    return f"{taken} Compute hides {share(why.hidden_share)} of the communication."


def cause_sentence(
    cause: Cause, total_s: float, seconds: TimeText, share: ShareText = percent
) -> str:
    """Write the time of a plan without a cause, and the place of the cause."""
    text = _would(cause, total_s, seconds, share)
    return text[:1].upper() + text[1:]


def _would(cause: Cause, total_s: float, seconds: TimeText, share: ShareText) -> str:
    saves = f"{seconds(cause.saves_s)} less ({share(cause.saves_s / total_s)})"
    where = place_text(cause, seconds)
    return f"{CONDITIONS[cause.name]}, the plan would take {saves}{where and f'; {where}'}."


def place_text(cause: Cause, seconds: TimeText) -> str:
    """Name where a cause shows; empty if there is no one place."""
    where = cause.where
    match cause.name:
        case "balance":
            # A document is named only if most of the device's pairs belong to it.
            of = f", mostly of sequence {where['sequence']}" if "sequence" in where else ""
            of += f" ({where['sequence_name']})" if "sequence_name" in where else ""
            return (
                f"device {where['device']} computes longest, {where['times_mean']:.2f} times the "
                f"mean{of}"
            )
        case "links" if where:
            verb = "sends" if where["side"] == "send" else "receives"
            return (
                f"device {where['device']} {verb} for {seconds(where['seconds_on_path'])} on the "
                "critical path"
            )
        case "latency":
            messages = where["messages_on_path"]
            noun = "message" if messages == 1 else "messages"
            return f"the critical path waits for {messages} {noun} to arrive"
        case "launches":
            held = where["host_s"]
            host = f", and waits up to {seconds(held)} a direction for a host" if held else ""
            return f"a device launches up to {where['kernels_of_device']} kernels{host}"
        case "waves":
            return f"kernels now take {where['times_full']:.2f} times as long"
        case "tiles":
            return f"kernels compute {where['computed_over_visible']:.2f} pairs per visible pair"
        case "order":
            return f"device {where['device']} waits longest for compute of other devices"
        case "idle":
            count = len(where["devices"])
            return f"{count} device{'s have' if count > 1 else ' has'} no tile"
        case "memory":
            return (
                f"buffers take {where['buffer_bytes'] / 1e6:.1f} MB per device instead of "
                f"{where['unlimited_bytes'] / 1e6:.1f} MB"
            )
        case _:  # links, where no message is on the critical path
            return ""


def path_lines(why: Why) -> tuple[PathLine, ...]:
    """Write the critical path as lines, in the order of time."""
    path, trace = why.path, why.trace
    total = float(max(1.0, (path.end_ns - path.start_ns).sum()))
    lines = []
    for event, start, end, step in zip(
        path.event.tolist(), path.start_ns.tolist(), path.end_ns.tolist(), path.step.tolist(),
        strict=True,
    ):  # fmt: skip
        lines.append(
            PathLine(event, start / 1e9, (end - start) / 1e9, (end - start) / total, STEPS[step],
                     _step_text(trace, event, STEPS[step]))
        )  # fmt: skip
    return tuple(lines)


def _step_text(trace: Trace, event: int, step: str) -> str:
    device, peer, name = int(trace.device[event]), int(trace.peer[event]), trace.name_of(event)
    lane, division = LANES[trace.lane[event]], int(trace.division[event])
    if lane == "send":
        text = f"device {device} sends {name} to device {peer}"
    elif lane == "receive":
        text = f"device {device} receives {name} from device {peer}"
    else:
        text = f"{name} on device {device}, division {division}"
    # A copy begins the program of a direction, so it is its start, whatever the kind of step.
    if trace.kind[event] == EVENT_KINDS.index("copy"):
        text = f"host work on device {device}"
    elif step == "launches":
        text = f"gap before: {text}"
    return f"{text}, {'backward' if trace.is_backward[event] else 'forward'}"


Reason = Name | Literal["work", "close", "several"]
"""The reason for a difference: a cause, the mean device's compute (`work`), several causes, or
`close`: the difference is too small for a reason."""

CLOSE = 0.01
"""Times that differ by a smaller share have no cause that is worth a name."""
MOSTLY = 0.6
"""A cause is named alone if it is this share of all that make the slower plan slower."""
WORTH_SAYING = 0.1
"""Causes of at least this share of the difference are listed beside the reason."""

CAUSE_RULE = (
    "Each cause is removed from both plans twice: once alone, once after all other causes. The "
    "share of a cause is the mean of the two savings. The causes are "
    f"{joined(sorted(NOUNS.values()))}. A cause is named as the reason if it is at least "
    f"{MOSTLY:.0%} of what makes the slower plan slower."
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Difference in predicted time between two plans of one batch, with its reason."""

    # first, second: the diagnoses of the two plans
    first: Diagnosis
    second: Diagnosis

    @property
    def difference(self) -> float:
        """Seconds that the second takes more."""
        return self.second.seconds - self.first.seconds

    @property
    def shares(self) -> dict[Name | Literal["work"], float]:
        """Seconds that each cause adds to the slower plan, most first; negative if it saves."""
        sign = 1 if self.difference >= 0 else -1
        found: dict[Name | Literal["work"], float] = {
            "work": sign * (self.second.work_s - self.first.work_s)
        }
        for name in NOUNS:
            first, second = (
                cause.part_s if (cause := side.of(name)) is not None else 0.0
                for side in (self.first, self.second)
            )
            found[name] = sign * (second - first)
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    @property
    def reason(self) -> Reason:
        """The cause that explains most of the difference, if one does."""
        if abs(self.difference) <= CLOSE * max(self.first.seconds, self.second.seconds):
            return "close"
        # Compared with all causes that slow the slower plan down; other causes may pull the other
        # way, so a share of the difference itself could exceed 1.
        shares = self.shares
        best = next(iter(shares))
        pushing = sum(max(0.0, share) for share in shares.values())
        return best if shares[best] >= MOSTLY * pushing else "several"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; `Any`: texts, numbers, objects of them."""
        return {
            "reason": self.reason,
            "difference_s": self.difference,
            "adds_s": self.shares,
            "first": self.first.to_json(),
            "second": self.second.to_json(),
        }


def unlike_batches(first: Plan, second: Plan) -> tuple[str, ...]:
    """Describe how the batches of two plans differ; empty if they compute the same."""
    is_same_batch = first.cu_seqlens.tolist() == second.cu_seqlens.tolist()
    differs = {
        "batches of other lengths": not is_same_batch,
        # Masks of as many pairs count as equal.
        "other masks": is_same_batch and measure(first).pairs != measure(second).pairs,
        "other model shapes": not first.shape.is_same_model(second.shape),
    }
    return tuple(what for what, is_so in differs.items() if is_so)


def explain(first: Plan, second: Plan, *, known: Diagnosis | None = None) -> Explanation:
    """Find out why two plans of one batch differ in time; `known` is the first's diagnosis."""
    unlike = unlike_batches(first, second)
    if unlike:
        raise PlanError(f"expected two plans of one batch, got plans for {', '.join(unlike)}")
    return Explanation(known or diagnose(first), diagnose(second))


def explain_difference(
    found: Explanation,
    names: tuple[str, str],
    seconds: TimeText,
    share: ShareText = percent,
) -> str:
    """Explain in sentences which plan is faster and why."""
    first, second = found.first.seconds, found.second.seconds
    if found.reason == "close":
        text = (
            f"{names[0]} and {names[1]} take about the same time, {seconds(first)} and "
            f"{seconds(second)}. The difference is at most {share(CLOSE)}, too small to name a "
            "reason."
        )
    else:
        faster, slower = names if first < second else names[::-1]
        least, most = min(first, second), max(first, second)
        text = (
            f"{faster} takes {share(1 - least / most)} less time than {slower}: {seconds(least)} "
            f"instead of {seconds(most)}, {_because(found, slower, seconds)}."
            f"{_what_if(found, names, seconds)}"
        )
    return text[:1].upper() + text[1:]


def _because(found: Explanation, slower: str, seconds: TimeText) -> str:
    more, less = _listed(found, 1, seconds), _listed(found, -1, seconds)
    match found.reason:
        case "work":
            text = f"mostly because the average device of {slower} computes more"
        case "several" | "close":
            text = f"for several reasons: {slower} loses more time to {more}"
        case name:
            text = f"mostly because {slower} loses more time to {NOUNS[name]}"
    return f"{text}, although {slower} loses less time to {less}" if less else text


def _listed(found: Explanation, sign: int, seconds: TimeText) -> str:
    """Name the causes that add time to the slower plan (`sign` 1), or save some (-1)."""
    least = WORTH_SAYING * abs(found.difference)
    shares = {name: sign * share for name, share in found.shares.items()}
    chosen = sorted((n for n in shares if shares[n] >= least), key=lambda n: -shares[n])
    nouns = ["compute itself" if name == "work" else NOUNS[name] for name in chosen]
    told = zip(nouns, chosen, strict=True)
    return joined([f"{noun} ({seconds(shares[name])})" for noun, name in told])


def _what_if(found: Explanation, names: tuple[str, str], seconds: TimeText) -> str:
    """Write the times of both plans without each of the two causes that slow one down most."""
    # `work` has no condition: it cannot be imagined away.
    pushing = [name for name, share in found.shares.items() if name != "work" and share > 0]
    told = []
    for name in pushing[:2]:
        saved = [cause.saves_s if (cause := side.of(name)) is not None else 0.0
                 for side in (found.first, found.second)]  # fmt: skip
        first, second = found.first.seconds - saved[0], found.second.seconds - saved[1]
        told.append(
            f"{CONDITIONS[name]}, {names[0]} would take {seconds(first)} and {names[1]} "
            f"{seconds(second)}"
        )
    text = "; ".join(told)
    return f" {text[:1].upper()}{text[1:]}." if text else ""
