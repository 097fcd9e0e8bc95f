"""Deal documents to runs of devices: equal work, under a cap on the tokens of a device.

A micro-batch is a row of units: groups of devices of one size. A document takes a run of 1, 2, 4,
... units, or all units. A run starts at a multiple of its own length, so that one of two runs
contains the other or they are apart. Work and tokens of a document are spread evenly over its run.
"""

from typing import NamedTuple

import numpy as np

from dcp_dsl.arrays import Floats, Ints
from dcp_planner.jit import FloatTable, compiled, inlined, inner

LEAST_GAIN = 2e-4
"""Smallest gain of an exchange, as a share of the work of the unit with most work."""

MOST_TRIES = 100_000
"""Most exchanges that one deal looks at."""


class Deal(NamedTuple):
    """Runs of all documents, and the load of each unit."""

    # micro_batch, first: of each document: its micro-batch, and the first unit of its run `[N]`
    micro_batch: Ints
    first: Ints
    size: Ints  # units of each document's run `[N]`
    # work, tokens: of each document, on each unit of its run `[N]`
    work: Floats
    tokens: Floats
    # load, held: work and tokens of every unit `[M, U]`
    load: FloatTable
    held: FloatTable

    def by_tokens(self) -> "Deal":
        """Exchange the roles of work and tokens."""
        return self._replace(work=self.tokens, tokens=self.work, load=self.held, held=self.load)


class Exchange(NamedTuple):
    """A document that moves to another run, and one that takes its place (-1: none).

    `gain` is the work that the exchange takes off the first run, or, if that is less, the distance
    of the second run, with its new document, below the fullest unit of its micro-batch.
    """

    gain: float
    leaves: int
    comes: int
    micro_batch: int
    first: int


def deal(
    work: Floats,
    tokens: Ints,
    size: Ints,
    shape: tuple[int, int],
    cap: float,
) -> Deal:
    """Choose a run of units for every document: wide ones first, then the longest.

    `size` of a document is a power of two units, or all; `shape`: micro-batches, units of each.
    Each goes to the run with room whose fullest unit has least work. A document that fits nowhere
    goes to the run with the fewest tokens. Then documents move, or change places with others of
    their size, while that relieves the fullest unit of a micro-batch and makes no other micro-batch
    longer. Deterministic. Cost: O(N M U + `MOST_TRIES`).
    Source: longest processing time first (Graham 1969), with a second resource and exchanges.
    """
    count = len(work)
    size = np.ascontiguousarray(size, np.int64)
    dealt = Deal(
        np.zeros(count, np.int64), np.zeros(count, np.int64), size,
        work / size, tokens / size, np.zeros(shape), np.zeros(shape),
    )  # fmt: skip
    _fill(dealt, np.lexsort((np.arange(count), -work, -size)), float(cap))
    # First the tokens, by the same search with exchanged roles, until all units hold the cap or
    # nothing helps; then the work.
    if dealt.held.max() > cap:
        _relieve(dealt.by_tokens(), np.inf, float(cap), *np.zeros((2, shape[0])))
    _relieve(dealt, float(cap), 0.0, *np.zeros((2, shape[0])))
    return dealt


@inlined
def _most(values: FloatTable, batch: int, first: int, size: int) -> float:
    most: float = values[batch, first]
    for unit in range(first + 1, first + size):
        most = max(most, values[batch, unit])
    return most


@inlined
def _put(deal: Deal, row: int, batch: int, first: int, sign: int) -> None:
    """Add a document to a run, or take it out with `sign` -1."""
    for unit in range(first, first + deal.size[row]):
        deal.load[batch, unit] += sign * deal.work[row]
        deal.held[batch, unit] += sign * deal.tokens[row]


@compiled
def _fill(deal: Deal, order: Ints, cap: float) -> None:
    """Place documents one after the other."""
    # `place` is the least busy run with room, `roomiest` the run with the fewest tokens.
    for row in order:
        width = deal.size[row]
        place, best = (-1, 0), np.inf
        roomiest, least = (0, 0), np.inf
        for batch in range(deal.load.shape[0]):
            for start in range(0, deal.load.shape[1] - width + 1, width):
                taken = _most(deal.held, batch, start, width)
                busy = _most(deal.load, batch, start, width)
                if taken < least:
                    least, roomiest = taken, (batch, start)
                if taken + deal.tokens[row] <= cap and busy < best:
                    best, place = busy, (batch, start)
        if place[0] < 0:
            place = roomiest
        deal.micro_batch[row], deal.first[row] = place
        _put(deal, row, place[0], place[1], 1)


@compiled
def _relieve(deal: Deal, cap: float, enough: float, tops: Floats, done: Floats) -> None:
    """Relieve the fullest unit of each micro-batch until it has `enough` or nothing helps.

    `tops` and `done`, one for each micro-batch, are room to work in.
    """
    tries = 0
    while tries < MOST_TRIES:
        batch = _most_wasteful(deal, tops, done)
        if batch < 0:
            return
        found = Exchange(tops[batch] * LEAST_GAIN, -1, -1, 0, 0)  # only a larger gain replaces it
        full = 0
        while deal.load[batch, full] < tops[batch]:
            full += 1
        for row in range(len(deal.size)):
            start = deal.first[row]
            inside = start <= full and full < start + deal.size[row]
            if tops[batch] <= enough or tries >= MOST_TRIES:
                break
            # Only a document on the fullest unit can relieve it.
            if deal.micro_batch[row] == batch and inside:
                tries += len(deal.size) + deal.load.size // deal.size[row]  # swaps, then runs
                found = _best_swap(deal, row, cap, tops, _best_move(deal, row, cap, tops, found))
        if found.leaves < 0:
            done[batch] = 1.0
            continue
        start = deal.first[found.leaves]
        _put(deal, found.leaves, batch, start, -1)
        _put(deal, found.leaves, found.micro_batch, found.first, 1)
        deal.micro_batch[found.leaves], deal.first[found.leaves] = found.micro_batch, found.first
        if found.comes >= 0:
            _put(deal, found.comes, found.micro_batch, found.first, -1)
            _put(deal, found.comes, batch, start, 1)
            deal.micro_batch[found.comes], deal.first[found.comes] = batch, start


@inner
def _most_wasteful(deal: Deal, tops: Floats, done: Floats) -> int:
    """Fill `tops`; find the micro-batch, not yet done, whose top is furthest above its mean."""
    found, most = -1, 0.0
    for batch in range(len(tops)):
        tops[batch], total = 0.0, 0.0
        for unit in range(deal.load.shape[1]):
            tops[batch] = max(tops[batch], deal.load[batch, unit])
            total += deal.load[batch, unit]
        waste = tops[batch] - total / deal.load.shape[1]
        if done[batch] == 0.0 and waste > max(most, tops[batch] * LEAST_GAIN):
            found, most = batch, waste
    return found


@inner
def _best_move(deal: Deal, row: int, cap: float, tops: Floats, best: Exchange) -> Exchange:
    """Look for a run with room for a document of the fullest unit."""
    width = deal.size[row]
    for batch in range(deal.load.shape[0]):
        for start in range(0, deal.load.shape[1] - width + 1, width):
            # Room below the top of that micro-batch once the document is there: negative if it
            # would become the new top.
            left = tops[batch] - _most(deal.load, batch, start, width) - deal.work[row]
            gain = min(deal.work[row], left)
            if batch == deal.micro_batch[row] and start == deal.first[row]:
                continue
            if gain > best.gain and _most(deal.held, batch, start, width) + deal.tokens[row] <= cap:
                best = Exchange(gain, row, -1, batch, start)
    return best


@inner
def _best_swap(deal: Deal, row: int, cap: float, tops: Floats, best: Exchange) -> Exchange:
    """Look for a document of less work that changes places with one of the fullest unit."""
    width = deal.size[row]
    filled = _most(deal.held, deal.micro_batch[row], deal.first[row], width)
    for back in range(len(deal.size)):
        shift, grown = deal.work[row] - deal.work[back], deal.tokens[row] - deal.tokens[back]
        # A run that is above the cap may stay so, but gets no more tokens.
        if deal.size[back] != width or shift <= best.gain or filled - grown > max(cap, filled):
            continue
        batch, start = deal.micro_batch[back], deal.first[back]
        if batch == deal.micro_batch[row] and start == deal.first[row]:
            continue
        gain = min(shift, tops[batch] - _most(deal.load, batch, start, width) - shift)
        taken = _most(deal.held, batch, start, width)
        if gain > best.gain and taken + grown <= max(cap, taken):
            best = Exchange(gain, row, back, batch, start)
    return best
