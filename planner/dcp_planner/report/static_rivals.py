"""A plan against static layouts: the best that holds the token cap, and the best of all.

A static layout is taken as it is, so one device may own or compute more than the tolerances allow.
More tokens than the cap need memory that nobody planned for: such a layout is no fair rival, but is
named. More compute than the cap takes longer, which the predicted time shows already: such a layout
is marked and stays a rival, although plans hold that cap.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from dcp_planner.model.config import PlanConfig
from dcp_planner.report.figures import BatchFigures, Spread, spread_of
from dcp_planner.tables.metrics import PlanMetrics

PREFIX = "static:"
"""With which the names of static layouts begin."""
Scope = Literal["within_token_cap", "of_all"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_ROUNDING = 1e-9


class Rival(NamedTuple):
    """The fastest static layout of a scope.

    Attributes:
        name: of the layout.
        speedup: how many times faster our plan is predicted.
    """

    name: str
    speedup: float


def over_caps(figures: BatchFigures | PlanMetrics, config: PlanConfig) -> dict[str, float]:
    """Return the caps that a plan exceeds, with the most over the mean that it reaches.

    >>> from types import SimpleNamespace
    >>> over_caps(SimpleNamespace(compute_imbalance=2.4, token_imbalance=1.1), PlanConfig())
    {'compute': 2.4}
    """
    reached = {"compute": figures.compute_imbalance, "tokens": figures.token_imbalance}
    caps = {"compute": config.compute_tolerance, "tokens": config.token_tolerance}
    return {name: most for name, most in reached.items() if most > 1 + caps[name] + _ROUNDING}


def best_static(
    our_s: float, their_s: Mapping[str, float], over: Mapping[str, Collection[str]]
) -> dict[Scope, Rival]:
    """Find the fastest static layout of every scope that has one.

    Args:
        our_s: predicted seconds of our plan.
        their_s: those of the other methods by name; only static layouts count.
        over: names of the caps that each exceeds.

    >>> best_static(2.0, {"static:ring": 1.0, "static:grid": 3.0}, {"static:ring": ["tokens"]})
    {'within_token_cap': Rival(name='static:grid', speedup=1.5),
     'of_all': Rival(name='static:ring', speedup=0.5)}
    """
    names = [name for name in their_s if name.startswith(PREFIX)]
    chosen = {"within_token_cap": [n for n in names if "tokens" not in over.get(n, ())],
              "of_all": names}  # fmt: skip
    found: dict[Scope, Rival] = {}
    for scope in SCOPES:
        if chosen[scope]:
            name = min(chosen[scope], key=lambda n: their_s[n])
            found[scope] = Rival(name, their_s[name] / our_s if our_s else 1.0)
    return found


def spreads_over_best(batches: Iterable[Mapping[Scope, Rival]]) -> dict[Scope, Spread]:
    """Compute the spread of the speedup over the best static layout of each batch that has one."""
    batches = list(batches)
    values = {
        scope: [batch[scope].speedup for batch in batches if scope in batch] for scope in SCOPES
    }
    return {scope: spread_of(speedups) for scope, speedups in values.items() if speedups}
