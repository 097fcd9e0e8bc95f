"""Meetings of many ranks: the notes are right, the store does work per rank, the lost are named."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from torch.distributed import HashStore

from dcp_runtime.errors import RunError
from dcp_runtime.transport.failure_registry import FailureRegistry
from dcp_runtime.transport.store_barrier import FAN, StoreBarrier


class CountingStore:
    """A store in memory that counts the keys and bytes that it is asked for."""

    def __init__(self):
        self.values, self.keys, self.bytes = {}, 0, 0

    def set(self, key, value):
        self.keys += 1
        self.values[key] = value.encode()

    def check(self, keys):
        self.keys += len(keys)
        return all(key in self.values for key in keys)

    def multi_get(self, keys):
        found = [self.values[key] for key in keys]
        self.keys += len(keys)
        self.bytes += sum(map(len, found))
        return found

    def get(self, key):
        return self.multi_get([key])[0]

    def delete_key(self, key):
        self.keys += 1
        del self.values[key]


def play(store, barriers, notes, seed):
    """Let every rank take its turns in random order until all have left; look once a turn."""
    meetings = {rank: barriers[rank].meet(note) for rank, note in enumerate(notes)}
    waits, found, drawn = dict.fromkeys(meetings, ()), {}, random.Random(seed)
    while meetings:
        ranks = list(meetings)
        drawn.shuffle(ranks)
        for rank in ranks:
            if not waits[rank] or store.check(waits[rank]):
                try:
                    waits[rank] = next(meetings[rank])
                except StopIteration as end:
                    found[rank] = end.value
                    del meetings[rank]
    return found


def barriers_of(store, size, timeout_s=60.0):
    return [
        StoreBarrier(store, rank, size, FailureRegistry(store, rank), timeout_s)
        for rank in range(size)
    ]


@pytest.mark.parametrize("size", [2, 3, FAN + 1, FAN + 2, 100])
def test_every_rank_reads_the_notes_of_all_meeting_after_meeting(size):
    store, drawn = CountingStore(), random.Random(size)
    barriers = barriers_of(store, size)
    for seed in range(3):
        notes = [drawn.choice(["", "same", "same", f"rank {rank}\n"]) for rank in range(size)]
        assert play(store, barriers, notes, seed) == dict.fromkeys(range(size), notes)
    assert all(key.startswith("barrier/2/") for key in store.values)  # others were forgotten


def test_the_store_works_for_1024_ranks_as_for_each_of_them():
    store, size = CountingStore(), 1024
    play(store, barriers_of(store, size), ["prepare\nepoch 0, batch 7\n" + "f" * 64] * size, 0)
    assert store.keys < 16 * size
    assert store.bytes < 300 * size


@pytest.fixture
def short_grace(monkeypatch):
    monkeypatch.setattr("dcp_runtime.transport.failure_registry.GRACE_S", 0.4)


def assert_all_miss(store, size, away):
    """Let all other ranks meet; each must name the one that is away."""
    barriers = barriers_of(store, size, timeout_s=0.4)
    del barriers[away]
    with ThreadPoolExecutor(size) as pool:
        runs = [pool.submit(barrier.exchange_notes, "", "prepare") for barrier in barriers]
    for run in runs:
        with pytest.raises(RunError, match=f"rank {away} is dead or stalled") as caught:
            run.result()
        assert caught.value.rank == away


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize(("size", "away"), [(3, 2), (40, 39), (40, 1)])
def test_the_rank_that_does_not_come_is_named(size, away):
    assert_all_miss(HashStore(), size, away)


@pytest.mark.usefixtures("short_grace")
def test_a_rank_that_dies_between_its_note_and_the_sum_is_named():
    store = HashStore()
    next(barriers_of(store, 20)[1].meet(""))  # its children are 17, 18 and 19
    assert_all_miss(store, 20, 1)
