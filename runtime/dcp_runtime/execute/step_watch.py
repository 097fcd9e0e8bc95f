"""`StepWatch`: brings the measurements of all ranks in each batch into the log and the rates.

A batch goes to the log when the next batches are prepared. Ranks leave their totals in the group's
store, and the first rank writes one record of all.
"""

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dcp_planner import Plan, Trace
from dcp_planner.plan import PlanPart
from dcp_runtime.execute.prepared_plan import PreparedPlan
from dcp_runtime.plans.batch_plans import BatchNote, DeviceRates, own_work, plan_facts, whole_plan
from dcp_runtime.plans.own_cluster import machine_name
from dcp_runtime.run_log.log import RunLog
from dcp_runtime.run_log.records import RankTotals, StepRecord, measured_figures, planned_figures
from dcp_runtime.transport.transport import Transport

SLOTS = 64
"""Batches whose totals lie in the group's store at once; later batches overwrite them in turn."""
LONGEST_WAIT_S = 5.0  # how long the thread of the log waits for the totals of the other ranks

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class WatchedBatch:
    """A batch under way: its plans, the same prepared, and when it began and ended."""

    number: int
    note: BatchNote
    plans: Sequence[Plan | PlanPart]
    digest: str
    prepared: Sequence[PreparedPlan]
    is_traced: bool
    started_s: float = field(default_factory=time.monotonic)
    ended_s: float | None = None

    @property
    def calls(self) -> list[tuple[int, int]]:
        """Forward and backward calls of each plan on this rank."""
        counts = [p.recorder.calls for p in self.prepared]
        return [(count["forward"], count["backward"]) for count in counts]

    def totals(self, rank: int) -> RankTotals:
        """Return the totals of this rank."""
        assert self.ended_s is not None, "the batch is over"
        step_s, calls = self.ended_s - self.started_s, self.calls
        work = sum(n * own_work(p, rank) for p, (n, _) in zip(self.plans, calls, strict=True))
        spent = [p.recorder.spent_s() for p in self.prepared]  # None: not measured
        if any(times is None for times in spent):
            return RankTotals(step_s, work)
        attention, other, waiting = (
            sum(column) for column in zip(*filter(None, spent), strict=True)
        )
        # The rank that this rank waited for longest, -1 if it waited for none.
        awaited = sum((p.recorder.awaited() for p in self.prepared), Counter[int]())
        late, late_ns = awaited.most_common(1)[0] if awaited else (-1, 0)
        return RankTotals(step_s, work, attention, other, waiting, late, 1e-9 * late_ns)


class StepWatch:
    """Keeps the batches of an executor until all ranks are done with them.

    The thread of the log does all that takes time, so that the training loop waits for nothing
    here. Either all ranks have a log, or none; the same holds for rates. The first rank writes. Its
    global rank names the replica; `lag` batches may be prepared before the first of them runs.
    """

    def __init__(
        self,
        log: RunLog | None,
        rates: DeviceRates | None,
        transport: Transport,
        replica: int,
        lag: int,
        trace_every: int | None,
    ) -> None:
        self._log, self._rates, self._transport = log, rates, transport
        self._lag, self._trace_every = lag, trace_every
        self._open: deque[WatchedBatch] = deque()
        self._untimed: WatchedBatch | None = None  # over for the host, not yet for a device
        # _wait_s falls to 0 once ranks have not come: a log on the first rank alone must not cost
        # the full wait at every step.
        self._count, self._wait_s = 0, LONGEST_WAIT_S
        if log is not None:
            log.describe(replica, {"ranks": transport.size, "trace_every": trace_every})

    def begin(
        self,
        note: BatchNote,
        plans: Sequence[Plan | PlanPart],
        digest: str,
        prepared: Sequence[PreparedPlan],
    ) -> None:
        """Note a batch that all ranks have prepared; write the batch that they are done with."""
        if self._open:
            self._open[-1].ended_s = time.monotonic()
        if len(self._open) == self._lag:
            # Rates are measured one batch later than the log: a device may still compute it now.
            if self._untimed is not None and self._rates is not None:
                own = self._untimed.totals(self._transport.rank)
                period = self._rates.add(own.work, own.attention_s)
                if period is not None:  # it ends on all ranks at once
                    self._rates.update(self._transport.exchange_notes(period, "rates"))
            self._untimed = self._open.popleft()
            self._hand_over(self._untimed)
        # All ranks count alike, so that they come together to gather a trace.
        every = self._trace_every
        is_traced = every is not None and self._count % every == 0
        batch = WatchedBatch(self._count, note, plans, digest, prepared, is_traced)
        self._open.append(batch)
        self._count += 1

    def close(self) -> None:
        """Write the last batches, as far as the other ranks close as well."""
        if self._open:
            self._open[-1].ended_s = time.monotonic()
        while self._open:
            batch = self._open.popleft()
            batch.is_traced = False  # other ranks may not come to gather
            self._hand_over(batch)
        if self._log is not None:
            self._log.flush()

    def _hand_over(self, batch: WatchedBatch) -> None:
        log, timeline = self._log, None
        if log is None:
            return
        if batch.is_traced:  # collective, and true on all ranks for the same batches
            timeline = self._transport.gather_timeline(batch.prepared[0].recorder)
        trace = None if timeline is None else timeline.trace
        log.submit(lambda: self._write(log, batch, trace))

    def _write(self, log: RunLog, batch: WatchedBatch, trace: Trace | None) -> None:
        """Leave the totals of this rank in the store; on the first rank, write those of all."""
        rank, slot = self._transport.rank, batch.number % SLOTS
        own = batch.totals(rank)
        if rank:
            self._transport.store.set(f"run/{slot}/{rank}", json.dumps([batch.number, *own]))
            return
        figures: StepRecord = {"at": round(time.time(), 3), **batch.note.facts}
        figures |= {"name": batch.note.name, "digest": batch.digest}
        figures["tokens"] = batch.plans[0].num_tokens
        figures["cluster"] = whole_plan(batch.plans[0]).cluster.name
        if (engine := batch.prepared[0].latest_engine) is not None:
            figures["machine"] = machine_name(on_gpu=engine.kind.device.type == "cuda")
        plans = [plan for plan in batch.plans if isinstance(plan, Plan)]
        facts = batch.note.plans or tuple(plan_facts(plan) for plan in plans)
        if len(facts) == len(batch.plans):
            figures |= planned_figures(facts, batch.calls)
        others = self._others(batch.number, slot)
        figures |= {"step_s": own.step_s} if others is None else measured_figures([own, *others])
        if trace is not None and len(plans) == len(batch.plans):
            figures["trace"] = log.keep_trace(log.next_step, plans[0], trace)
        log.write(figures)

    def _others(self, number: int, slot: int) -> list[RankTotals] | None:
        """Return the totals of the other ranks, ``None`` if a rank leaves none in time."""
        keys = [f"run/{slot}/{rank}" for rank in range(1, self._transport.size)]
        deadline = time.monotonic() + self._wait_s
        while keys:
            if self._transport.store.check(keys):
                found = [json.loads(text) for text in self._transport.store.multi_get(keys)]
                # A slot may still hold the totals of an older batch.
                if all(first == number for first, *_ in found):
                    return [RankTotals(*rest) for _, *rest in found]
            if time.monotonic() > deadline:
                if self._wait_s == LONGEST_WAIT_S:
                    logger.warning("ranks without totals: give DCPExecutor a run_log on every rank")
                self._wait_s = 0.0
                return None
            time.sleep(0.005)
        return []
