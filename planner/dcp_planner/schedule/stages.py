"""The one order in which all devices launch, wait, compute and reduce.

Every instruction of every device belongs to a stage; a program is the device's instructions in the
order of their stages. A wait stands behind the launch it belongs to, so no two programs can wait
for each other. With D divisions, and hops h of inputs and results::

    Copy
    Launch(inputs 1, each h) · Launch(inputs 2, each h) · ...
    for t = 0, 1, ...:
        Wait(arrivals of inputs t, each h)
        Attention(t)
        Launch(results of t, h = 0)
        for h = 1, 2, ...: Wait(partials of t - h) · Reduction · Launch(merged results of t - h)
    Wait(results that came home) · Reduction · Wait(whatever is still leaving)

This order never stands still for memory: what is launched first leaves first, and links are never
idle while anything is left to send. A frugal order launches the inputs of t + 1 just before
Attention(t); it waits for what leaves, and merges what came home, as soon as everybody has had one
division to get it away, so that buffers can be used again.
"""

from dataclasses import dataclass, field

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_planner.model.config import MOST_DIVISIONS
from dcp_planner.tables.programs import ATTENTION, COPY, LAUNCH, REDUCTION, WAIT

AHEAD = {False: MOST_DIVISIONS, True: 1}
"""Divisions before its own that an input is launched, by `is_frugal`; most: all at the start.

Three ahead was up to 30 % slower than all, and saved 2 % of the memory: most of it is queries and
results.
"""


@dataclass(slots=True)
class Stages:
    """Stages of one direction, numbered in their order; tables by stage and by what happens there.

    Attributes:
        divisions: D, at least 1.
        in_hops, out_hops: hops of inputs and results, at least 1.
        is_frugal: whether buffers are given back early.
        op, division, key: per stage.
        wait_of: stage that waits for what a stage launches; -1 for stages that launch nothing.
        attention: stage by division.
        take_in, send_in: launch of arriving and leaving inputs ``[D, in_hops]``.
        take_out, send_out, merge_out: launch of partials on their way to a gateway, at both ends,
            and their reduction ``[D, out_hops]``.
        take_home, send_home, merge_home: the same for results on their way to the owner.
    """

    divisions: int
    in_hops: int
    out_hops: int
    is_frugal: bool
    op: list[int] = field(default_factory=lambda: [COPY])
    division: list[int] = field(default_factory=lambda: [-1])
    key: list[int] = field(default_factory=lambda: [-1])
    wait_of: list[int] = field(default_factory=lambda: [-1])
    attention: Ints = field(init=False)
    take_in: Ints = field(init=False)
    send_in: Ints = field(init=False)
    take_out: Ints = field(init=False)
    send_out: Ints = field(init=False)
    merge_out: Ints = field(init=False)
    take_home: Ints = field(init=False)
    send_home: Ints = field(init=False)
    merge_home: Ints = field(init=False)

    def __post_init__(self) -> None:
        inputs, results = (
            np.full((self.divisions, hops), -1, np.int64) for hops in (self.in_hops, self.out_hops)
        )
        self.attention = np.full(self.divisions, -1, np.int64)
        self.take_in, self.send_in = inputs, inputs.copy()
        self.take_out, self.send_out, self.merge_out = (results.copy() for _ in range(3))
        self.take_home, self.send_home, self.merge_home = (results.copy() for _ in range(3))
        for division in range(1, min(AHEAD[self.is_frugal], self.divisions)):
            self._launch_inputs(division)
        for t in range(self.divisions + self.out_hops):
            self._add_division(t)
        self._add_end()

    def _add(self, op: int, division: int, key: int = -1) -> int:
        self.op.append(op)
        self.division.append(division)
        self.wait_of.append(-1)
        self.key.append(len(self.op) - 1 if op == LAUNCH else key)
        return len(self.op) - 1

    def _wait(self, launch: int) -> None:
        if launch >= 0 and self.wait_of[launch] < 0:
            self.wait_of[launch] = self._add(WAIT, self.division[launch], launch)

    def _add_division(self, t: int) -> None:
        if t < self.divisions:
            for launch in self.take_in[t]:
                self._wait(int(launch))
            if t + AHEAD[self.is_frugal] < self.divisions:
                self._launch_inputs(t + AHEAD[self.is_frugal])
            self.attention[t] = self._add(ATTENTION, t)
            if self.is_frugal:
                for launch in self.send_in[t]:
                    self._wait(int(launch))
            self._launch_results(t, 0)
        for hop in range(1, self.out_hops + 1):
            division = t - hop
            if 0 <= division < self.divisions:
                self._merge(division, hop - 1)
                if hop < self.out_hops:
                    self._launch_results(division, hop)

    def _launch_inputs(self, division: int) -> None:
        for hop in range(self.in_hops):
            self.take_in[division, hop] = self._add(LAUNCH, division)
            self.send_in[division, hop] = self._add(LAUNCH, division)

    def _launch_results(self, division: int, hop: int) -> None:
        # Ends launch what passes between them in one order: first to gateways, then home.
        for launches in (self.take_out, self.send_out, self.take_home, self.send_home):
            launches[division, hop] = self._add(LAUNCH, division)

    def _merge(self, division: int, hop: int) -> None:
        self._wait(int(self.take_out[division, hop]))
        self.merge_out[division, hop] = self._add(REDUCTION, division)
        if self.is_frugal:
            for launches in (self.take_home, self.send_out, self.send_home):
                self._wait(int(launches[division, hop]))
            self.merge_home[division, hop] = self._add(REDUCTION, division)

    def _add_end(self) -> None:
        if not self.is_frugal:
            for launch in self.take_home.ravel():
                self._wait(int(launch))
            self.merge_home[:] = self._add(REDUCTION, self.divisions - 1)
        for launches in (self.send_in, self.send_out, self.send_home):
            for launch in launches.ravel():
                self._wait(int(launch))
