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

from functools import lru_cache

import numpy as np

from dcp_dsl.arrays import Ints
from dcp_planner.model.config import MOST_DIVISIONS
from dcp_planner.tables.programs import ATTENTION, COPY, LAUNCH, REDUCTION, WAIT

AHEAD = {False: MOST_DIVISIONS, True: 1}
"""Divisions before its own that an input is launched, by `is_frugal`; most: all at the start.

Three ahead was up to 30 % slower than all, and saved 2 % of the memory: most of it is queries and
results.
"""
INTO, OUT, HOME = range(3)
"""Ways of transfers: inputs, partial results on their way to a gateway, results that come home."""
TAKE, SEND, MERGE = range(3)
"""Steps of a transfer: its target launches it, its source launches it, its target adds it up."""


class Stages:
    """Stages of one direction, numbered in their order; tables by stage and by what happens there.

    Attributes:
        op: uint8 ``[S]``, of each stage.
        division, key: int32 ``[S]``; the key of a wait is the stage that launches what it is for.
        attention: int64 ``[D]``, stage of each division.
        at: int64 ``[3, 3, D, H]``, stage of what is done with a transfer, by its way, division and
            hop; -1: nothing.
    """

    def __init__(self, divisions: int, hops: tuple[int, int], *, is_frugal: bool) -> None:
        self._divisions, (self._in_hops, self._out_hops) = divisions, hops
        self._is_frugal = is_frugal
        self._rows: list[tuple[int, int, int]] = [(COPY, -1, -1)]
        self._waited = set[int]()
        self.attention = np.full(divisions, -1, np.int64)
        self.at = np.full((3, 3, divisions, max(hops)), -1, np.int64)
        for division in range(1, min(AHEAD[is_frugal], divisions)):
            self._launch_inputs(division)
        for t in range(divisions + self._out_hops):
            self._add_division(t)
        self._add_end()
        op, division, key = np.array(self._rows, np.int32).T.copy()
        self.op, self.division, self.key = op.astype(np.uint8), division, key

    def _add(self, op: int, division: int, key: int = -1) -> int:
        self._rows.append((op, division, len(self._rows) if op == LAUNCH else key))
        return len(self._rows) - 1

    def _wait(self, launches: Ints) -> None:
        for launch in launches.ravel().tolist():
            if launch >= 0 and launch not in self._waited:
                self._waited.add(launch)
                self._add(WAIT, self._rows[launch][1], launch)

    def _add_division(self, t: int) -> None:
        if t < self._divisions:
            self._wait(self.at[INTO, TAKE, t])
            if t + AHEAD[self._is_frugal] < self._divisions:
                self._launch_inputs(t + AHEAD[self._is_frugal])
            self.attention[t] = self._add(ATTENTION, t)
            if self._is_frugal:
                self._wait(self.at[INTO, SEND, t])
            self._launch_results(t, 0)
        for hop in range(1, self._out_hops + 1):
            division = t - hop
            if 0 <= division < self._divisions:
                self._merge(division, hop - 1)
                if hop < self._out_hops:
                    self._launch_results(division, hop)

    def _launch_inputs(self, division: int) -> None:
        for hop in range(self._in_hops):
            for end in (TAKE, SEND):
                self.at[INTO, end, division, hop] = self._add(LAUNCH, division)

    def _launch_results(self, division: int, hop: int) -> None:
        # Ends launch what passes between them in one order: first to gateways, then home.
        for way in (OUT, HOME):
            for end in (TAKE, SEND):
                self.at[way, end, division, hop] = self._add(LAUNCH, division)

    def _merge(self, division: int, hop: int) -> None:
        self._wait(self.at[OUT, TAKE, division, hop])
        self.at[OUT, MERGE, division, hop] = self._add(REDUCTION, division)
        if self._is_frugal:
            for way, end in ((HOME, TAKE), (OUT, SEND), (HOME, SEND)):
                self._wait(self.at[way, end, division, hop])
            self.at[HOME, MERGE, division, hop] = self._add(REDUCTION, division)

    def _add_end(self) -> None:
        if not self._is_frugal:
            self._wait(self.at[HOME, TAKE])
            self.at[HOME, MERGE] = self._add(REDUCTION, self._divisions - 1)
        for way in (INTO, OUT, HOME):
            self._wait(self.at[way, SEND])


@lru_cache(maxsize=64)
def stages_of(divisions: int, hops: tuple[int, int], *, is_frugal: bool) -> Stages:
    """Return the stages of so many divisions, and hops of inputs and of results, at least 1."""
    return Stages(divisions, hops, is_frugal=is_frugal)
