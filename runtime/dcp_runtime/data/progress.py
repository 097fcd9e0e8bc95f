"""How far training has come in a data set, and the state that resumes it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from dcp_runtime.data.choices import check_count
from dcp_runtime.data.content import SAMPLED_ROWS, DataIdentity
from dcp_runtime.data.dealing import Dealing
from dcp_runtime.data.packing import Position
from dcp_runtime.errors import RunError

State: TypeAlias = dict[str, Any]  # Any: integers and texts, fit for JSON

SCHEMA = "dcp.dataloader/2"


@dataclass(slots=True)
class Progress:
    """How far the iterations over a loader have come."""

    position: Position = field(default_factory=Position)
    chosen: Position | None = None  # by `set_epoch` or `load_state_dict`, where the next one begins
    iterations: int = 0  # begun so far: an older iterator must not move the position
    is_begun: bool = False  # a micro-batch was yielded since the last iteration began
    is_under_way: bool = False

    @property
    def start(self) -> Position:
        """Where the next iteration begins."""
        if self.chosen is not None:
            return self.chosen
        return Position(self.position.epoch + 1) if self.is_begun else self.position

    @property
    def saved(self) -> Position:
        """The position that a state holds."""
        # A position that was set for the next iteration is the present one until that begins.
        return self.position if self.is_under_way or self.chosen is None else self.chosen

    def begin(self) -> int:
        """Begin an iteration, and return its number."""
        self.position, self.chosen, self.is_begun = self.start, None, False
        self.iterations += 1
        return self.iterations

    def choose(self, epoch: int) -> None:
        """Make the next iteration begin an epoch, unless a position in it was chosen."""
        check_count("epoch", epoch, 0)
        if self.chosen is None or self.chosen.epoch != epoch:
            self.chosen = Position(epoch)

    def move(self, position: Position) -> None:
        """Note that the micro-batch in front of a position is yielded."""
        self.position, self.is_begun = position, True

    def check_newest(self, iteration: int) -> None:
        """Refuse to go on with an iteration after another one has begun."""
        if iteration != self.iterations:
            raise RunError(
                "another iteration over this DCPDataloader has begun and ended this one: expected "
                "one at a time; make a loader for each"
            )


def save_state(position: Position, identity: DataIdentity, dealing: Dealing) -> State:
    """Return the state that resumes at a position, as JSON values."""
    state = {"schema": SCHEMA, **asdict(position), "fingerprint": identity.fingerprint}
    state |= identity.hashes._asdict()
    if position.micro_batch:  # the rest of the window must be dealt as its beginning was
        state["dealing"] = dealing.name
    return state


def load_state(state: State, identity: DataIdentity, dealing: Dealing) -> Position:
    """Return the position that a state holds."""
    if not isinstance(state, Mapping) or state.get("schema") != SCHEMA:
        raise RunError(
            f"expected a state of schema {SCHEMA!r}, as state_dict() gives it, got "
            f"{str(state)[:80]}"
        )
    if state.get("fingerprint") != identity.fingerprint:
        raise RunError(
            "the state was saved with other rows, token_budget, order, shuffle, seed, "
            "drop_last, replicas, micro_batches, window or policy; resume with the same data "
            "set and options, or start anew"
        )
    for name, own in identity.hashes._asdict().items():
        # States of older versions have no hashes; rows computed at random have none either.
        if own and state.get(name) and state[name] != own:
            raise RunError(
                f"the state was saved with other {name}: expected the hash {state[name]}, got "
                f"{own} of {SAMPLED_ROWS} rows or fewer, from the first to the last; resume "
                "with the same data set and the same spec or mask, or start anew with a new "
                "loader"
            )
    position = Position.of(state)
    if position.micro_batch and state.get("dealing") != dealing.name:
        raise RunError(
            "the state was saved inside a global batch that was dealt for other ranks, another "
            "model or other options of dealing; resume with the same ones, or from a state "
            "that was saved where LocalData.ends_step is true"
        )
    return position
