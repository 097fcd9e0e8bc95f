"""Planner processes, and the messages between them and a rank.

A request to plan global batches is a line of JSON; a reply is a line of JSON with the plans behind
it. The processes start as programs of their own. They are not forked, and do not import the user's
script again, so a training script needs no ``if __name__ == "__main__"``.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from dcp_dsl import DatasetError, DCPError, Mask
from dcp_planner import Cluster, ModelShape, Plan, PlanConfig
from dcp_planner.plan import PlanPart, decode_part, decode_plan, encode_parts
from dcp_planner.workers import TaskError, Worker, WorkerLost, WorkerPool, WorkerProgram
from dcp_runtime.data.dealing import Dealing
from dcp_runtime.errors import RunError
from dcp_runtime.plans.batch_plans import BatchPlan, StackedPlans, whole_plan
from dcp_runtime.run_log.records import PlanFacts

# Defined here because planner processes use it, too, and do not load torch.
SKIP_HINT = "policy='skip' leaves such rows out and counts them"

Runs: TypeAlias = tuple[tuple[int, int], ...]  # half-open runs of packed positions, rising

MOST_FAILED_STARTS = 2
"""Processes in a row that end before they are ready; after that, none is started any more."""

_T = TypeVar("_T")


class MaskText(NamedTuple):
    """A mask as text."""

    spec: str  # text
    name: str  # path of the spec, for messages
    call: str  # name or call of the mask in the spec
    files: tuple[tuple[str, str], ...] = ()  # path and text of each imported file

    @classmethod
    def of(cls, mask: Mask) -> "MaskText":
        """Return the texts from which a mask can be rebuilt."""
        program, imported = mask.scope.program, mask.scope.imported
        return cls(program.text, program.name, mask.call, tuple(imported.files.items()))


@dataclass(frozen=True, slots=True)
class SequenceRequest:
    """One sequence of a global batch."""

    row: int  # its number in the data set, for messages
    cycle: tuple[int, ...]  # for each layer the number of its mask in the request, -1 if linear
    sample: str  # JSON of the sample that the masks read
    num_tokens: int  # fewer than the sample has if the row was cut


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Global batches that are dealt together, to plan for one replica; see `Planning`."""

    masks: tuple[MaskText, ...]
    sequences: tuple[SequenceRequest, ...]  # in packed order, of all replicas
    dealing: Dealing
    replica: int
    may_skip: bool  # sequences that do not fit their mask; else they are an error
    block_size: int | None
    shape: ModelShape
    cluster: Cluster
    config: PlanConfig

    def to_json(self) -> str:
        """Return the request as one line; equal requests give equal lines."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "PlanRequest":
        """Read a line of `to_json`."""
        values = json.loads(text)
        values["masks"] = tuple(
            MaskText(spec, name, call, tuple((path, text) for path, text in files))
            for spec, name, call, files in values["masks"]
        )
        values["sequences"] = tuple(
            SequenceRequest(**{**s, "cycle": tuple(s["cycle"])}) for s in values["sequences"]
        )
        values["dealing"] = Dealing.from_json(values["dealing"])
        values["shape"] = ModelShape(**values["shape"])
        values["cluster"] = Cluster(**values["cluster"])
        values["config"] = PlanConfig(**values["config"])
        return cls(**values)

    @property
    def own_devices(self) -> range:
        """Devices of the replica, among those of all."""
        first = self.replica * self.dealing.context_ranks
        return range(first, first + self.dealing.context_ranks)

    @property
    def key(self) -> str:
        """Name of the plans in a cache: sha256 of the request without the numbers of its rows."""
        # Equal sequences have equal plans, from whatever rows they come; rows are named afterwards.
        same = asdict(replace(self, sequences=tuple(replace(s, row=0) for s in self.sequences)))
        return hashlib.sha256(json.dumps(same).encode()).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """One micro-batch of a group of devices."""

    members: tuple[int, ...]  # its sequences in packed order, by number among those kept
    first: int  # the group's first device, which is device 0 of the plans
    plans: tuple[Plan | PlanPart, ...]  # one per distinct mask of its layers
    cycle: tuple[int, ...]  # for each layer the number of its plan
    facts: tuple[PlanFacts, ...]  # of each plan, with the prediction

    @property
    def plan(self) -> BatchPlan:
        """The plan of all layers, or the plans of a stack."""
        return self.plans[0] if len(self.plans) == 1 else StackedPlans(self.plans, self.cycle)

    def named(self, rows: Sequence[int], names: tuple[str, ...]) -> "MicroBatch":
        """Return it with copies of its plans, or of their parts, that name their sequences."""
        # Named here and not by the planner, as batches of other rows may share the cached plans.
        origin = "rows " + ", ".join(map(str, rows))
        plans: list[Plan | PlanPart] = []
        for plan in self.plans:
            whole = whole_plan(plan)
            told = whole.provenance and replace(whole.provenance, origin=origin)
            named = replace(whole, sequence_names=names, provenance=told)
            plans.append(replace(plan, plan=named) if isinstance(plan, PlanPart) else named)
        return replace(self, plans=tuple(plans))


@dataclass(frozen=True, slots=True, eq=False)
class PlanReply:
    """The micro-batches of a replica, and the sequences that do not fit their mask.

    `hidden` are tokens that the next token of their sequence does not see in any layer, `seen`
    those that the token before sees in some layer; positions in all kept sequences, packed.
    """

    batches: tuple[MicroBatch, ...]  # empty if no sequence is left
    left_out: tuple[tuple[int, str], ...] = ()  # number within the request, and why
    hidden: Runs = ()
    seen: Runs = ()
    steps: tuple[int, ...] = ()  # for each kept sequence the number of its global batch
    overflow: int = 0  # as of `deal_documents`


def encode_reply(reply: PlanReply, plans: Sequence[bytes]) -> bytes:
    """Write a reply as a line of JSON, and behind it its plans, or a device's parts of them."""
    batches = [[b.members, b.first, b.cycle, b.facts] for b in reply.batches]
    beside = ("left_out", "hidden", "seen", "steps", "overflow")
    head = {"sizes": [*map(len, plans)], "batches": batches}
    head |= {name: getattr(reply, name) for name in beside}
    return json.dumps(head).encode() + b"\n" + b"".join(plans)


def encode_parts_of(reply: PlanReply, devices: range) -> list[bytes]:
    """Return the encoded reply for each of the devices, which take part in all micro-batches."""
    parts: list[list[bytes]] = [[] for _ in devices]
    for batch in reply.batches:
        for plan in batch.plans:
            assert isinstance(plan, Plan), "parts are cut from whole plans"
            # `devices` count over all replicas, the parts of a plan from 0 in their own group.
            own = encode_parts(plan)
            for place, device in enumerate(devices):
                parts[place].append(own[device - batch.first])
    return [encode_reply(reply, mine) for mine in parts]


def decode_reply(
    data: bytes, decode: Callable[[bytes], Plan | PlanPart] = decode_part
) -> PlanReply:
    """Read the reply for one device; `decode` reads a plan, by default a device's part of it."""
    head, _, rest = data.partition(b"\n")
    try:
        found = json.loads(head)
        ends = pairwise(accumulate([int(size) for size in found["sizes"]], initial=0))
        plans = iter([decode(rest[start:end]) for start, end in ends])
        batches = []
        for members, first, cycle, told in found["batches"]:
            own, facts = [next(plans) for _ in told], tuple(PlanFacts(*each) for each in told)
            batches.append(MicroBatch(tuple(members), first, tuple(own), tuple(cycle), facts))
        left_out = tuple((int(number), str(text)) for number, text in found["left_out"])
        hidden, seen = (
            tuple((int(start), int(end)) for start, end in found[name])
            for name in ("hidden", "seen")
        )
        steps, overflow = tuple(found["steps"]), found["overflow"]
        return PlanReply(tuple(batches), left_out, hidden, seen, steps, overflow)
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise RunError(f"expected a part of a planned batch, got {len(data)} bytes") from error


class PlannerPool:
    """Planner processes that plan one batch each at a time; they start when first needed.

    They end with `close`, when the pool is no longer used, when this process ends, and after a plan
    that takes longer than the limit.
    """

    def __init__(self, size: int, time_limit_s: float) -> None:
        # By name: that module imports this module, which so cannot import it.
        program = WorkerProgram("dcp_runtime.data.make_plans:start")
        self._pool = WorkerPool(
            [Worker(program, "the planner", MOST_FAILED_STARTS) for _ in range(size)]
        )
        self._time_limit_s = time_limit_s

    def submit(self, request: PlanRequest) -> "Future[tuple[PlanReply, float]]":
        """Plan a batch in one of the processes; the result is its plans and the seconds it took.

        The future raises `WorkerLost` if the process is lost, and `DatasetError` or `RunError` with
        the planner's message if it refuses the batch.
        """
        return self._submit(
            request, "plans", lambda parts: decode_reply(parts[0], lambda x: decode_plan(x).plan)
        )

    def submit_parts(self, request: PlanRequest) -> "Future[tuple[list[bytes], float]]":
        """As `submit`, with one part per device of the replica, for `decode_reply`."""
        return self._submit(request, "parts", lambda parts: parts)

    def _submit(
        self,
        request: PlanRequest,
        kind: Literal["plans", "parts"],
        read: Callable[[list[bytes]], _T],
    ) -> "Future[tuple[_T, float]]":
        message, limit_s = {"request": request.to_json(), "kind": kind}, self._time_limit_s

        # It does not refer to `self`: the pool must be freed, and end, when users drop it.
        def plan(worker: Worker) -> tuple[_T, float]:
            try:
                answer, blob = worker.call(message, limit_s)
            except TaskError as error:
                # `kinds` names the classes of the error in the other process.
                refused = DatasetError if "DatasetError" in error.kinds else RunError
                raise refused(str(error)) from error
            try:
                ends = pairwise([0, *accumulate(answer["sizes"])])
                return read([blob[start:end] for start, end in ends]), answer["seconds"]
            except (DCPError, KeyError, TypeError, ValueError) as error:
                worker.end()  # the next answers may be as unreadable
                raise WorkerLost(f"the planner's answer cannot be read: {error}") from error

        try:
            return self._pool.submit(plan)
        except RuntimeError as error:  # no thread can be started
            lost: Future[tuple[_T, float]] = Future()
            lost.set_exception(WorkerLost(f"the planner cannot be asked: {error}"))
            return lost

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._pool.close()

    @property
    def is_closed(self) -> bool:
        """Return whether its processes have been ended."""
        return self._pool.is_closed

    @property
    def cannot_start(self) -> bool:
        """Return whether processes keep ending before they are ready."""
        return any(worker.cannot_start for worker in self._pool.workers)

    @property
    def processes(self) -> tuple[int, ...]:
        """Process numbers of the planners that run."""
        pids = [worker.pid for worker in self._pool.workers]
        return tuple(pid for pid in pids if pid is not None)
