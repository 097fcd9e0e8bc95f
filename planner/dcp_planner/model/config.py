"""The choices of one planning run."""

from dataclasses import dataclass, replace
from numbers import Integral
from typing import Literal, TypeAlias, get_args

from dcp_planner.errors import PlanError

Routing: TypeAlias = Literal["direct", "node"]
"""Routes of blocks: directly from and to the owner, or once per node and on from there."""

Partials: TypeAlias = Literal["auto", "float32", "input"]
"""Types in which partial results travel: float32, or that of the inputs."""

MOST_TOLERANCE = 1e6
"""Largest tolerance. Devices minus one already allow everything on one device."""
USUAL_TOLERANCE = 0.1
"""Excess of compute over the mean at which a search begins where none is given."""
MOST_COST = 0.03
"""Most share of the predicted time that float32 may add where ``partials`` is ``"auto"``."""
# 0.005, 0.02 and 0.4 as a fourth gained 0.1 % of the step (LOG.md).
TOLERANCES = (0.5, 1.0, 2.0)
"""Multiples of the token tolerance to try where tokens have a price."""
Budget = Literal["fast", "balanced"]
BUDGETS: tuple[Budget, ...] = get_args(Budget)
"""Budgets of a search, smallest first."""
Objective = Literal["time", "bytes", "balance", "memory"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
"""Figures that the default search may minimise over the front; bytes are those between nodes."""
_NAMES = {
    "budget": BUDGETS, "objective": OBJECTIVES, "routing": get_args(Routing),
    "partials": get_args(Partials),
}  # fmt: skip
MOST_DIVISIONS = 1024
"""Most divisions of one direction."""
MOST_HEAD_GROUPS = 256
"""Most groups of heads of a plan."""
GRID = 256
"""Tokens between two places, counted from its first token, where a reproducible plan cuts a
sequence. Results depend on it, so that it is a constant."""
MOST_SECONDS = 86_400.0
"""Longest time limit, a day."""


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Choices for placing and scheduling a batch.

    Attributes:
        partitioner: a key of `PARTITIONERS`.
        divisions: most divisions per direction, at least 2: the first has the local tiles, the
            others wait for inputs. ``"auto"`` takes the number that the simulator finds fastest.
        compute_tolerance: how far above the mean the most loaded device may compute, as a share; at
            most `MOST_TOLERANCE`. ``None``: the predicted time alone judges how even compute is.
        token_tolerance: how far above the mean the device with the most tokens may own, since its
            memory and the linear layers grow with them.
        token_seconds: seconds that a token takes in the rest of a layer, forward and backward
            (`StepModel.token_seconds`). Above 0 the time of the whole layer decides: plans are made
            at each of `TOLERANCES` times the tolerance, and the plan is kept whose attention time,
            plus this price times the tokens of the fullest device, is least. Planning then takes
            as many times as long. Other objectives than time ignore the price.
        budget: how much the native search may do, in work, not in time: the same input gives the
            same plan on a slow machine.
        objective: plan of the front that the default search takes: the fastest, or that with the
            fewest bytes between nodes, the most even compute and tokens, or the smallest receive
            buffers and partial sums.
        seed: of every random choice; the same input and seed give the same plan.
        routing: ``"direct"``: from and to the owner; ``"node"``: once per node, on from there.
        memory_limit_bytes: most bytes of receive buffers and partial sums of remote blocks on a
            device; ``None`` for no limit. Directions that need more are streamed: blocks come late,
            leave early and may be fetched twice, at a price in time.
        head_groups: groups of heads that are placed separately, at most `MOST_HEAD_GROUPS`: with
            1 all heads of a tile are computed on one device. ``"auto"`` also tries the numbers that
            shape and cluster allow, and takes what the simulator finds fastest. All groups have
            equally many query heads, and whole key/value heads or a part of the readers of one.
        partials: how partial outputs and partial gradients travel. ``"float32"`` adds no rounding,
            so that the error does not depend on the number of devices; ``"input"`` halves the bytes
            of 16-bit inputs. ``"auto"`` takes float32 where that costs at most `MOST_COST` of the
            predicted time.
        reproducible: out, lse, dq, dk and dv of a sequence have the same bits on any number of
            devices, in any plan and beside any other sequences. Blocks are cut at multiples of
            `GRID` tokens of their sequence, the owner of a query computes its whole row, and
            partial gradients of keys travel as whole numbers (`ModelShape.exact_sums`).
        time_limit_s: wall-clock seconds an external partitioner may take in all, at most a day.

    Raises:
        PlanError: if a value is out of its range.

    >>> PlanConfig(divisions=1)
    Traceback (most recent call last):
    ...
    dcp_planner.errors.PlanError: PlanConfig.divisions: expected at least 2 ..., got 1
    """

    partitioner: str = "portfolio"
    divisions: int | Literal["auto"] = "auto"
    compute_tolerance: float | None = None
    token_tolerance: float = 0.1
    budget: Budget = "balanced"
    seed: int = 0
    time_limit_s: float = 60.0
    routing: Routing = "node"
    memory_limit_bytes: int | None = None
    head_groups: int | Literal["auto"] = 1
    token_seconds: float = 0.0
    partials: Partials = "auto"
    objective: Objective = "time"
    reproducible: bool = False

    def __post_init__(self) -> None:
        if not _is_auto_or_count(self.divisions, 2, MOST_DIVISIONS):
            raise PlanError(
                "PlanConfig.divisions: expected at least 2 (one for local tiles, one that waits "
                f"for inputs) and at most {MOST_DIVISIONS}, or 'auto', got {self.divisions!r}"
            )
        if not _is_auto_or_count(self.head_groups, 1, MOST_HEAD_GROUPS):
            raise PlanError(
                f"PlanConfig.head_groups: expected 1 to {MOST_HEAD_GROUPS} or 'auto', got "
                f"{self.head_groups!r}"
            )
        limit, share = self.memory_limit_bytes, f"0 to {MOST_TOLERANCE:g}"
        for name, holds, expected in (
            ("memory_limit_bytes", limit is None or limit >= 0, "at least 0"),
            *((name, getattr(self, name) in known, f"one of {', '.join(known)}")
              for name, known in _NAMES.items()),
            ("compute_tolerance", 0 <= self.compute_cap <= MOST_TOLERANCE, share),
            ("token_tolerance", 0 <= self.token_tolerance <= MOST_TOLERANCE, share),
            ("token_seconds", 0 <= self.token_seconds <= MOST_SECONDS,
             f"0 to {MOST_SECONDS:g} seconds"),
            ("seed", 0 <= self.seed < 2**31, "0 to 2147483647"),
            ("time_limit_s", 0 < self.time_limit_s <= MOST_SECONDS,
             f"more than 0 and at most {MOST_SECONDS:g} seconds"),
        ):  # fmt: skip
            if not holds:
                value = getattr(self, name)
                raise PlanError(f"PlanConfig.{name}: expected {expected}, got {value!r}")
        if self.reproducible and self.head_groups not in (1, "auto"):
            raise PlanError(
                "PlanConfig.head_groups: a reproducible plan has one group, for the owner of a "
                f"query computes all of its heads; got {self.head_groups!r}"
            )

    @property
    def compute_cap(self) -> float:
        """The compute tolerance that a placement may not exceed."""
        return MOST_TOLERANCE if self.compute_tolerance is None else self.compute_tolerance

    @property
    def searched_tolerance(self) -> float:
        """The compute tolerance under which a search looks first."""
        return USUAL_TOLERANCE if self.compute_tolerance is None else self.compute_tolerance


def tolerances_of(config: PlanConfig) -> list[PlanConfig]:
    """Return the configurations to try, one for each token tolerance."""
    if not config.token_seconds or config.objective != "time":
        return [config]
    tried = (min(times * config.token_tolerance, MOST_TOLERANCE) for times in TOLERANCES)
    return [replace(config, token_tolerance=tolerance) for tolerance in tried]


def _is_auto_or_count(value: object, least: int, most: int) -> bool:
    """Check that a value is what its annotation says, since Python does not."""
    if isinstance(value, bool) or not isinstance(value, Integral):  # numpy's integers are Integral
        return value == "auto"
    return least <= int(value) <= most
