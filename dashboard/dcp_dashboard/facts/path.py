"""The critical path of a trace in words: how much of it each kind of step takes, with its place."""

from collections.abc import Mapping
from types import MappingProxyType

from dcp_dashboard.facts.event import event_selection
from dcp_dashboard.facts.quantities import percent
from dcp_dashboard.facts.text import DetailLink
from dcp_dashboard.library.plans import LoadedPlan
from dcp_planner import Source
from dcp_planner.causes import STEPS, Step

STEP_WORDS: Mapping[Step, str] = MappingProxyType(
    {
        "computing": "computing",
        "reducing": "merging results",
        "links": "bytes on links",
        "latency": "messages on their way",
        "launches": "starting work",
    }
)


def path_shares(loaded: LoadedPlan, source: Source) -> list[DetailLink]:
    """Write the share of every kind of step, the largest first; each selects its longest step."""
    shares = loaded.paths[source].shares()
    links = []
    for step in sorted(shares, key=lambda name: -shares[name]):
        place = longest_step(loaded, source, step)
        if place is not None:
            selected, time_ns = place
            text = f"{STEP_WORDS[step]} {percent(shares[step])}"
            links.append(DetailLink(text, selected, time_ns, source))
    return links


def longest_step(
    loaded: LoadedPlan, source: Source, step: Step
) -> tuple[str, tuple[int, int]] | None:
    """Return selection and time of the longest step of a kind, ``None`` if the path has none."""
    path = loaded.paths[source]
    spent = (path.end_ns - path.start_ns) * (path.step == STEPS.index(step))
    if not spent.any():
        return None
    longest = int(spent.argmax())
    selected = event_selection(loaded, source, int(path.event[longest]))
    return selected, (int(path.start_ns[longest]), int(path.end_ns[longest]))
