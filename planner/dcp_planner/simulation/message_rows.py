"""What a picture of a trace needs to know of its messages: rows, arrows, bytes not yet used."""

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dcp_planner.simulation.trace import LANES, Trace

Ints = NDArray[np.int64]
_SEND, _RECEIVE, _COMPUTE = LANES.index("send"), LANES.index("receive"), LANES.index("compute")


def rows_of_tracks(trace: Trace) -> Ints:
    """Give each event a row of its (device, lane) on which no two overlap, int64 ``[E]``.

    As few rows as events overlap at one time; 0 is the first. An event that starts when another
    ends may share its row, unless both start at one time. O(E log E), a loop over lanes only.
    """
    lane = trace.device.astype(np.int64) * len(LANES) + trace.lane
    order = np.lexsort((trace.end_ns, trace.start_ns, lane))
    start, end, lane = trace.start_ns[order], trace.end_ns[order], lane[order]
    rows = np.zeros(len(order), np.int64)
    borders = np.flatnonzero(np.diff(lane)) + 1
    for first, past in zip([0, *borders.tolist()], [*borders.tolist(), len(order)], strict=True):
        part = slice(first, past)
        begins = start[part]
        if ((begins[1:] < end[part][:-1]) | (begins[1:] == begins[:-1])).any():
            rows[part] = _spread(start[part], end[part])
    result = np.empty_like(rows)
    result[order] = rows
    return result


def _spread(start: Ints, end: Ints) -> Ints:
    """Give rows to events sorted by start: each takes the row that was left first, if one is free.

    With c[i] ends until start i, the number of rows taken over before event i is
    q[i + 1] = min(q[i] + 1, c[i]), a running minimum; event i then takes over from the q[i]-th to
    end, and rows follow from these links by pointer doubling.
    """
    size = len(start)
    place = np.arange(size)
    by_end = np.lexsort((place, end))
    # Events of no length leave their row to events that start later, not at the same time.
    instants = np.concatenate([[0], np.cumsum(start == end)])
    first, past = (np.searchsorted(start, start, side=side) for side in ("left", "right"))
    ended = np.searchsorted(end[by_end], start, side="right") - (instants[past] - instants[first])
    taken = np.concatenate([[0], np.minimum(0, np.minimum.accumulate(ended - (place + 1)))])
    taken += np.arange(size + 1)
    takes_over = taken[1:] > taken[:-1]
    origin = np.where(takes_over, by_end[np.minimum(taken[:-1], size - 1)], place)
    rows = np.where(takes_over, 0, np.cumsum(~takes_over) - 1)
    while True:
        further = origin[origin]
        if (further == origin).all():
            return np.asarray(rows[origin])
        origin = further


def name_codes(trace: Trace) -> tuple[list[str], Ints]:
    """Give the different names of a trace, and which of them each event has, int64 ``[E]``."""
    coded = pa.array(trace.name, pa.string()).dictionary_encode()
    names = [str(name) for name in coded.dictionary.to_pylist()]
    return names, coded.indices.to_numpy().astype(np.int64)


def flow_numbers(trace: Trace, codes: Ints | None = None) -> Ints:
    """Give sends and receives of one message the same number from 1 on, int64 ``[E]``; 0: none.

    The n-th send of a name and direction between two devices belongs to the n-th receive. `codes`
    are those of `name_codes`, where they are known.
    """
    numbers = np.zeros(len(trace), np.int64)
    rows = np.flatnonzero(((trace.lane == _SEND) | (trace.lane == _RECEIVE)) & (trace.peer >= 0))
    if not len(rows):
        return numbers
    is_send = trace.lane[rows] == _SEND
    device, peer = trace.device[rows].astype(np.int64), trace.peer[rows].astype(np.int64)
    source, target = np.where(is_send, device, peer), np.where(is_send, peer, device)
    name = (name_codes(trace)[1] if codes is None else codes)[rows]
    pair = source << 32 | target
    order = np.lexsort((trace.start_ns[rows], is_send, trace.is_backward[rows], name, pair))
    keys = np.stack([pair, name * 2 + trace.is_backward[rows]])[:, order]
    ends, is_send = rows[order], is_send[order]
    group = np.cumsum(np.concatenate([[True], (keys[:, 1:] != keys[:, :-1]).any(axis=0)])) - 1
    side = group * 2 + is_send
    first = np.concatenate([[True], side[1:] != side[:-1]])
    ordinal = np.arange(len(rows)) - np.flatnonzero(first)[np.cumsum(first) - 1]
    message = group << 32 | ordinal
    _, sent, received = np.intersect1d(
        message[is_send], message[~is_send], assume_unique=True, return_indices=True
    )
    numbers[ends[is_send][sent]] = numbers[ends[~is_send][received]] = np.arange(1, len(sent) + 1)
    return numbers


def unused_bytes(trace: Trace) -> tuple[Ints, Ints, Ints]:
    """Give how many received bytes every device holds for work that is not done yet.

    They come when a message has arrived and go when the device has finished the division that the
    message was for; bytes that came later than that are gone at once.

    Returns:
        Device, time in ns, and bytes from then on; int64 ``[C]`` each, by device and time.
    """
    got = np.flatnonzero((trace.lane == _RECEIVE) & (trace.size_bytes > 0))
    work = np.flatnonzero(trace.lane == _COMPUTE)
    chosen = np.concatenate([got, work])
    if not len(got):
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    key = trace.device[chosen].astype(np.int64) << 33
    key += (trace.division[chosen].astype(np.int64) + 2**31) * 2 + trace.is_backward[chosen]
    _, step = np.unique(key, return_inverse=True)
    done = np.full(int(step.max()) + 1, np.iinfo(np.int64).min)
    np.maximum.at(done, step[len(got) :], trace.end_ns[work])
    left = np.maximum(done[step[: len(got)]], trace.end_ns[got])
    device = np.tile(trace.device[got].astype(np.int64), 2)
    time = np.concatenate([trace.end_ns[got], left])
    change = np.concatenate([trace.size_bytes[got], -trace.size_bytes[got]])
    order = np.lexsort((time, device))
    device, time, change = device[order], time[order], change[order]
    last = np.append((device[1:] != device[:-1]) | (time[1:] != time[:-1]), True)
    return device[last], time[last], np.cumsum(change)[last]
