"""A process group whose ranks are threads: the part of ``torch.distributed`` that gloo needs.

A message waits in a queue of its group, source, target and tag. Global ranks may be any numbers.
"""

import queue
import threading
import time
from collections import Counter
from dataclasses import dataclass
from types import SimpleNamespace

from torch.distributed import HashStore

UNTAGGED = -1


@dataclass(frozen=True)
class Group:
    """Some ranks of a `ThreadRanks`, as each of them sees it."""

    ranks: tuple
    number: int
    backend: str
    timeout_s: float
    rank: int


class Work:
    """A message under way; a receive ends when it comes, or its group is broken."""

    def __init__(self, mail, tensor, broken):
        self.mail, self.tensor, self.broken = mail, tensor, broken

    def wait(self, timeout):
        deadline = time.monotonic() + timeout.total_seconds()
        while self.mail is not None and not self.has_come():
            if self.broken.is_set():
                raise RuntimeError("Connection closed by peer")
            if time.monotonic() > deadline:
                self.broken.set()  # as gloo does with its pairs
                raise RuntimeError("Timed out waiting 1ms for recv operation")
        return True

    def has_come(self):
        try:
            self.tensor.copy_(self.mail.get(timeout=0.001))
        except queue.Empty:
            return False
        return True


class ThreadRanks:
    """Stands in for ``torch.distributed``; every thread is a rank, see `run`."""

    ProcessGroup = Group

    def __init__(self, ranks):
        self.ranks, self.me, self.lock = tuple(ranks), threading.local(), threading.Lock()
        self.store, self.mail, self.broken = HashStore(), {}, {}
        self.posted = Counter()  # messages, by group, source, target and tag
        world = SimpleNamespace(
            get_group_store=lambda: self.store, rank=self.get_rank, bound_device_id=None
        )
        self.group = SimpleNamespace(WORLD=world)
        self.distributed_c10d = SimpleNamespace(
            _world=SimpleNamespace(pg_names={}, pg_group_ranks={}),
            _new_process_group_helper=self.new_group,
        )

    def run(self, work, timeout_s=60):
        """Call ``work(rank)`` on a thread per rank; return results, or errors, in order."""
        found = dict.fromkeys(self.ranks)

        def be(rank):
            self.me.rank, self.me.groups = rank, 0
            try:
                found[rank] = work(rank)
            except BaseException as error:
                found[rank] = error

        threads = [threading.Thread(target=be, args=(r,), daemon=True) for r in self.ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout_s)
        return [found[rank] for rank in self.ranks]

    def get_rank(self, group=None):
        return self.me.rank if group is None else group.ranks.index(group.rank)

    def get_world_size(self, group):
        return len(group.ranks)

    def get_process_group_ranks(self, group):
        assert group is self.group.WORLD
        return list(self.ranks)

    def get_global_rank(self, group, rank):
        return group.ranks[rank]

    def new_group(self, size, place, ranks, backend, store, name, options, timeout):  # noqa: PLR0913 - torch's
        assert (size, ranks[place], store, options) == (len(ranks), self.me.rank, self.store, None)
        number = self.me.groups = self.me.groups + 1
        made = Group(tuple(ranks), number, backend, timeout.total_seconds(), self.me.rank)
        return made, store

    def isend(self, tensor, peer, group, tag=UNTAGGED):
        key = self._key(group, group.rank, peer, tag)
        self._mail(key).put(tensor.clone())
        with self.lock:
            self.posted[key] += 1
        return Work(None, tensor, None)

    def irecv(self, tensor, peer, group, tag=UNTAGGED):
        key = self._key(group, peer, group.rank, tag)
        return Work(self._mail(key), tensor, self.broken_of(group))

    def send(self, tensor, peer, group):
        self.isend(tensor, peer, group)

    def recv(self, tensor, peer, group):
        self.irecv(tensor, peer, group).wait(SimpleNamespace(total_seconds=lambda: 60))

    def _key(self, group, source, target, tag):
        assert {source, target} <= set(group.ranks)
        assert source != target
        return group.number, source, target, tag

    def _mail(self, key):
        with self.lock:
            return self.mail.setdefault(key, queue.SimpleQueue())

    def broken_of(self, group):
        with self.lock:
            return self.broken.setdefault((group.rank, group.number), threading.Event())
