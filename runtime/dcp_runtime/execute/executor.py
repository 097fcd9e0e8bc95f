"""`DCPExecutor`: makes plans ready on the ranks of a process group, so that layers can run them."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Self
from weakref import WeakKeyDictionary

import torch.distributed as dist

from dcp_planner import Plan, Trace
from dcp_planner.plan import PlanPart
from dcp_runtime.errors import PeerError, RunError
from dcp_runtime.execute.layer_limits import MaskLimits
from dcp_runtime.execute.open_batches import NONE_PREPARED, TRACED_BATCHES, OpenBatches
from dcp_runtime.execute.parameter_watch import ParameterWatch
from dcp_runtime.execute.prepared_plan import Engine, PreparedPlan
from dcp_runtime.execute.step_watch import StepWatch
from dcp_runtime.kernels.choice import known_kernel, segment_rows
from dcp_runtime.plans.batch_plans import (
    SAME_ROWS,
    BatchNote,
    DeviceRates,
    Iteration,
    StackedPlans,
    batch_note,
    digest_of,
    whole_plan,
)
from dcp_runtime.plans.device_plan import DevicePlan, prepare_device
from dcp_runtime.run_log.log import RunLog
from dcp_runtime.transport.choice import make_transport
from dcp_runtime.transport.failure_registry import Awaited
from dcp_runtime.transport.group_store import Group, process_group
from dcp_runtime.transport.group_transport import member_ranks
from dcp_runtime.transport.limits import check_timeout
from dcp_runtime.transport.recorder import Recorder, Timeline, make_trace
from dcp_runtime.transport.store_barrier import Topic
from dcp_runtime.transport.transport import Transport, agree

DEFAULT_TIMEOUT_S = 600.0

_LAYERS = Topic(
    "order of layers",
    "all ranks run the same layers in the same order: where chance decides which ones run, as in "
    "LayerDrop, it must decide alike, from the same seed on all ranks",
)
_BATCH = Topic(
    "batch of the data loader",
    "every rank prepares every batch that its loader yields, in order, and all loaders resume from "
    "the same state",
)
_LENGTH = Topic("length of the data", SAME_ROWS)
_CONTENT = Topic(
    "content of the batch",
    "all ranks need the same rows and tokens (where the rows are equal, their tokens, targets, "
    f"positions or extra columns differ): {SAME_ROWS}",
)
_DIGEST = Topic("plan digest", "give every rank the same plan")
_TOPICS = (_LAYERS, _BATCH, _LENGTH, _CONTENT, _DIGEST)
"""What ranks compare where they prepare a batch; the first that differs is told."""


_LOADER_OF_THE_RANKS = (
    "a DCPDataloader plans for the ranks that there are when it is made, divided by its replicas: "
    "make it after init_process_group, or give it Planning(cluster=..., rank=...); with replicas, "
    "make the executor for the ranks of one replica, such as DCPExecutor(mesh['cp'])"
)


class DCPExecutor:
    """Runs plans on the ranks of a process group; rank r is device r of the plan.

    Making one is collective: every rank of the group makes its executor at the same time, and
    afterwards all ranks prepare the same plans and run the same layers in the same order.

    Args:
        group: ranks that share the attention, a group or a `DeviceMesh` of one dim; ``None`` for
            all. Messages travel over gloo, or over NCCL if the group's backend is NCCL: call
            ``torch.cuda.set_device`` first then.
        kernel: name of the kernel, ``None`` for the fastest that can compute.
        timeout_s: how long a rank may keep another one waiting before it counts as stalled.
        check_finite: raise if a tensor that arrives or results is not finite; costs a pass over it.
        transport: takes the place of the group's own.
        micro_batches: how many batches may be prepared before a layer runs the first of them: the
            micro-batches of a pipeline's step.
        trace_every: record the events of every n-th batch, from the first; the first 16 batches
            are recorded in any case, and with ``None`` no others.
        run_log: gets a record of every batch, when the next one is prepared; on all ranks or none.
            With `trace_every` it also keeps the plans of those batches with the traces of all
            ranks, where every rank has the whole plan.
        compare_parameters_every: compare the parameters that optimizers train over the ranks after
            the first step and every so many, within `prepare`; ``None`` for never. Parameters that
            were equal and no longer are had gradients that nobody summed. Costs a pass over them.
        rates: collects how fast each rank computes; on all ranks or none. With `Planning.rates`
            the next plans are made for these rates.

    Raises:
        RunError: if ``torch.distributed`` is not initialised, this rank is not in the group, the
            timeout is not above 0 and at most a day, or `micro_batches`, `trace_every` or
            `compare_parameters_every` is not at least 1.
    """

    def __init__(  # noqa: PLR0913 - each is a choice of its own
        self,
        group: Group | None = None,
        kernel: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        *,
        check_finite: bool = False,
        transport: Transport | None = None,
        micro_batches: int = 1,
        trace_every: int | None = None,
        run_log: RunLog | None = None,
        compare_parameters_every: int | None = 100,
        rates: DeviceRates | None = None,
    ) -> None:
        check_timeout(timeout_s)
        every = compare_parameters_every
        for name, count in (
            ("micro_batches", micro_batches),
            ("trace_every", 1 if trace_every is None else trace_every),
            ("compare_parameters_every", 1 if every is None else every),
        ):
            if not isinstance(count, int) or count < 1:
                raise RunError(f"expected {name} to be at least 1, got {count!r}")
        if kernel is not None:
            known_kernel(kernel)  # a misspelt name fails here, not in forward
        self._kernel, self._check_finite = kernel, check_finite
        if isinstance(transport, Transport):
            self._transport, replica = transport, 0
        else:
            found = _group_of(group)
            self._transport = make_transport(found, timeout_s)
            replica = member_ranks(found)[0]  # the first rank of a replica names it
        self._prepared: PreparedPlan | None = None
        # Ranks prepare the batches of their loaders in one order, so all count iterations alike.
        self._iterations: WeakKeyDictionary[Iteration, int] = WeakKeyDictionary()
        self._num_iterations, self._is_closed = 0, False
        # Rates need the times of every batch, and on CUDA only recorded events hold them.
        self._batches = OpenBatches(trace_every if rates is None else 1, warns=not self.rank)
        self._micro_batches = micro_batches
        self._parameters = ParameterWatch(every)
        self._watch: StepWatch | None = None
        if run_log is not None or rates is not None:
            self._watch = StepWatch(
                run_log, rates, self._transport, replica, micro_batches, trace_every
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        """Close it. An error that is under way is told to the other ranks, and is not replaced."""
        # A `PeerError` is known to all. An interrupt is no error, here as within a layer.
        if isinstance(error, Exception) and not isinstance(error, PeerError):
            self._transport.report("the code around its layers", None, error)
        self.close()

    @property
    def rank(self) -> int:
        """This rank within the group."""
        return self._transport.rank

    def prepare(self, plan: Plan | PlanPart, step: int | None = None) -> PreparedPlan:
        """Make the plan of a batch, or this rank's part of one, ready for the layers that run it.

        Collective: compares digests, so that all ranks run the same plan; the numbers of the
        batches that the data loaders yielded, so that no rank skips a batch; and the content of
        these batches, so that all ranks hold parts of the same rows. Tables go to the device where
        the layers of the plan before had their tensors; those of the first plan follow with its
        first layer.

        Args:
            plan: of the batch, or this rank's part of it.
            step: number of the batch, where no `DCPDataloader` gave the plan: a rank that skipped
                a batch is named at once, also where all plans are equal.

        Raises:
            RunError: if it is no plan, is for another number of devices than the group has ranks,
                or is not the plan or the batch of the other ranks; names the rank that differs, or
                has no further batch. Also if no layer ran the plan that was prepared before,
                ranks ran different layers since then (as far as `LayerPlans` numbers them), or the
                optimizers' parameters drifted apart.
        """
        note = batch_note(plan)
        if step is not None:
            note = replace(note, name=f"step {step}")
        return self._prepare((plan,), note)[0]

    def prepare_stack(self, stack: StackedPlans) -> tuple[PreparedPlan, ...]:
        """Make the plans of one batch ready, as `prepare` does; for `LayerPlans`.

        Raises:
            RunError: as `prepare`.
        """
        return self._prepare(stack.plans, batch_note(stack))

    def _prepare(
        self, plans: Sequence[Plan | PlanPart], note: BatchNote
    ) -> tuple[PreparedPlan, ...]:
        # An error of this rank alone is told to all in `agree`, so that none waits for it.
        propose = partial(self._propose_parts, plans, note)
        self._expect(note)
        topics = (*_TOPICS, self._parameters)
        digests, parts = agree(self._transport, topics, "prepare", propose)
        batch = self._batches.add(note.name, [mask_of(plan, n) for n, plan in enumerate(plans)])
        masks = note.masks or [()] * len(plans)
        prepared = tuple(
            PreparedPlan(
                part, self._transport, batch, self._kernel, self._check_finite, engine, number,
                MaskLimits(part.plan, masks[number], note.largest_position),
            )
            for number, (part, engine) in enumerate(parts)
        )  # fmt: skip
        if self._prepared is not None:
            for each in prepared:
                # The device of the plan before, until a layer shows where its tensors are.
                each.recorder.clock = self._prepared.recorder.clock
        self._prepared = prepared[-1]
        if self._watch is not None:
            self._watch.begin(note, plans, digests, prepared)
        return prepared

    def _expect(self, note: BatchNote) -> None:
        """Note the batch that all ranks are about to prepare; they hear of the end of its data."""
        iteration = note.iteration
        if iteration is None:
            self._transport.expect(None)
            return
        if iteration not in self._iterations:
            self._iterations[iteration] = self._num_iterations
            self._num_iterations += 1
            iteration.follow(self._end_data)
            iteration.patience_s = min(iteration.patience_s, self._transport.timeout_s)
        name = f"{note.name}, {note.content}" if note.content else note.name
        self._transport.expect(Awaited(self._iterations[iteration], note.place, name))

    def _end_data(self, iteration: Iteration, why: str) -> None:
        self._transport.end_data(self._iterations[iteration], iteration.batches, why)

    def _propose_parts(
        self, plans: Sequence[Plan | PlanPart], note: BatchNote
    ) -> tuple[Sequence[str], tuple[str, list[tuple[DevicePlan, Engine | None]]]]:
        self._batches.check_waiting(self._micro_batches - 1)
        layers = self._batches.take_layers()
        engine = None if self._prepared is None else self._prepared.latest_engine
        parts: list[tuple[DevicePlan, Engine | None]] = []
        for plan in plans:
            self._check_plan(plan, note.iteration)
            part = prepare_device(whole_plan(plan), self.rank, segment_rows(self._kernel))
            parts.append((part, None if engine is None else engine.take(part, self._kernel)))
        digests = " ".join(map(digest_of, plans))
        length = "" if note.iteration is None else note.iteration.length
        told = (layers, note.name, length, note.content, digests, self._parameters.value())
        return told, (digests, parts)

    def _check_plan(self, plan: Plan | PlanPart, iteration: Iteration | None) -> None:
        if isinstance(plan, PlanPart) and plan.device != self.rank:
            raise RunError(
                f"expected the part of rank {self.rank}, got that of rank {plan.device}; every "
                "rank prepares the part that was made for it"
            )
        if isinstance(plan, StackedPlans):
            raise RunError(
                f"expected one Plan, got {len(plan.plans)} of a stack; make them ready by "
                "LayerPlans.prepare(executor, plan)"
            )
        if not isinstance(plan, Plan | PlanPart):
            raise RunError(
                f"expected a Plan, got {type(plan).__name__}; a file gives one by "
                "read_plan(path).plan"
            )
        devices, ranks = plan.num_devices, self._transport.size
        if devices != ranks:
            way_out = f"start {devices} ranks, or plan for a cluster of {ranks} devices"
            raise RunError(
                f"the plan is for {devices} devices, the process group has {ranks} ranks; "
                f"{way_out if iteration is None else _LOADER_OF_THE_RANKS}"
            )
        own = None if iteration is None else iteration.device
        if own is not None and own % devices != self.rank:
            raise RunError(
                f"the loader yields the tokens of rank {own % devices}, this is rank {self.rank} "
                f"of the executor's group; {_LOADER_OF_THE_RANKS}"
            )

    @property
    def prepared(self) -> PreparedPlan:
        """The plan that a layer runs if it gets the executor in place of a prepared plan.

        Raises:
            RunError: before the first `prepare`, and wherever another plan might be meant: inside a
                backward pass, while another batch waits for its layers or its backward, and after
                a stack.
        """
        latest = self._latest()
        self._batches.check_only_one()
        return latest

    def _latest(self) -> PreparedPlan:
        if self._prepared is None:
            raise RunError(NONE_PREPARED)
        return self._prepared

    def trace(self) -> Trace:
        """Return the events of this rank since `prepare`; times count from the first one.

        Raises:
            RunError: if the batch prepared last is not recorded.
        """
        recorder = self._recorder()
        self._transport.catch_up()
        return make_trace(*recorder.table())

    def gather_timeline(self) -> Timeline | None:
        """Gather the events of all ranks since `prepare`, on one clock.

        Collective; ``None`` on every rank but 0.

        Raises:
            RunError: if the batch prepared last is not recorded.
        """
        return self._transport.gather_timeline(self._recorder())

    def _recorder(self) -> Recorder:
        latest = self._latest()
        if not latest.recorder.is_on:
            raise RunError(
                f"nothing is recorded of {latest.batch.name}: the first {TRACED_BATCHES} batches "
                "are, and those that DCPExecutor(trace_every=...) asks for"
            )
        return latest.recorder

    def close(self) -> None:
        """End the threads that watch messages; the executor cannot run after that.

        Ranks that still wait for this one are told. No rank waits for another here.

        Raises:
            RunError: if no layer ran any plan of a batch that was prepared, a message of the last
                layers was lost and no call has said so, or a rank that closed before ran other
                layers in the last batch; unless another error is under way.
        """
        self._parameters.close()
        if self._watch is not None:
            self._watch.close()
        is_first, self._is_closed = not self._is_closed, True
        try:
            # After an error, messages may never come: catching up would wait for them.
            if sys.exception() is None:
                self._transport.catch_up()
                self._batches.check_waiting(0)
                if is_first:
                    layers = self._batches.take_layers()
                    self._transport.compare_with_first(_LAYERS, layers, "closing the executor")
        except Exception as error:
            if not isinstance(error, PeerError):
                self._transport.report("closing its executor", None, error)
            raise
        finally:
            self._transport.leave(f"closed its executor after {self._batches.latest}")
            self._transport.close()
        self._batches.check_unused()


def mask_of(plan: Plan | PlanPart, number: int) -> str:
    """Return the mask of a plan for messages; `number` is that of the plan in its batch."""
    told = whole_plan(plan).provenance
    return f"`{told.mask}`" if told is not None and told.mask else f"plan {number}"


def _group_of(group: Group | None) -> dist.ProcessGroup | None:
    if not dist.is_initialized():
        raise RunError(
            "DCPExecutor needs a process group: call torch.distributed.init_process_group first "
            "(torchrun sets what it needs), also for a single process"
        )
    return process_group(group)
