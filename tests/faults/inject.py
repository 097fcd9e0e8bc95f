"""Faults at named points: a shim before libc, and the page that tells it what happens where.

A process under the shim, and all that it starts, look at the page at each call to open, read,
write, rename, mkdir, send, recv, socketpair and clock_gettime. Memory and open files are taken away
by real limits of the kernel, a folder by a real rename; error numbers are made up.
"""

import ctypes
import errno
import mmap
import os
import resource
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

FOREVER = 2**31 - 1
CALLS = ("open", "read", "write", "rename", "mkdir", "send", "recv", "socketpair")
WAYS = ("fail", "kill", "stop", "slow", "vanish", "memory", "files")


class Control(ctypes.Structure):
    """The page, as `shim.c` reads it."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("armed", "worker")),
        ("calls", ctypes.c_uint32),
        *((name, ctypes.c_int32) for name in ("how", "value", "skip", "left", "hits")),
        ("clock_shift_s", ctypes.c_int64),
        ("pattern", ctypes.c_char * 256),
        ("folder", ctypes.c_char * 256),
    ]


@dataclass(frozen=True)
class Fault:
    """A fault by its name in the matrix."""

    name: str
    way: str  # of the shim, or ``clock`` for a jump
    value: int = 0  # an error number, or milliseconds
    needs: tuple[str, ...] = ()  # calls that can meet it; empty for any


FAULTS = (
    Fault("ENOSPC", "fail", errno.ENOSPC, ("open", "write", "mkdir", "send", "rename")),
    Fault("EMFILE", "files"),
    Fault("EIO", "fail", errno.EIO, ("open", "read", "write", "send", "recv", "rename")),
    Fault("EACCES", "fail", errno.EACCES, ("open", "mkdir", "rename", "socketpair")),
    Fault("rmdir", "vanish"),
    Fault("SIGKILL", "kill"),
    Fault("SIGSTOP", "stop"),
    Fault("memory", "memory"),
    Fault("clock", "clock"),
    Fault("slow", "slow", 20),
)


class Injector:
    """Arms one fault at a time for the processes that share its page."""

    def __init__(self, page: Path) -> None:
        with page.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        self.control = Control.from_buffer(self._map)

    def set(
        self, fault: Fault, calls: tuple[str, ...], pattern: str, folder: Path, *,
        worker: bool = False, skip: int = 0, times: int = 1,
    ) -> None:  # fmt: skip
        """Choose what happens to which calls, from now on disarmed."""
        met = [call for call in calls if not fault.needs or call in fault.needs]
        control = self.control
        control.armed = control.hits = 0
        control.worker, control.skip, control.left = worker, skip, times
        control.calls = sum(1 << CALLS.index(call) for call in met)
        control.how, control.clock_shift_s, control.value = 0, 0, fault.value
        if fault.way == "clock":
            control.calls, control.clock_shift_s = 0, -10 * 365 * 86400
        else:
            control.how = WAYS.index(fault.way)
        control.pattern, control.folder = pattern.encode(), os.fsencode(folder)

    @contextmanager
    def armed(self):
        """Let the fault happen inside the block; afterwards this process has its limits back."""
        self.control.armed = 1
        try:
            yield
        finally:
            self.control.armed = 0
            for what in (resource.RLIMIT_DATA, resource.RLIMIT_NOFILE):
                resource.setrlimit(what, (resource.getrlimit(what)[1],) * 2)

    @property
    def hits(self) -> int:
        return self.control.hits


def environment(folder: Path) -> dict[str, str]:
    """Compile the shim and make the page; return the variables that put a process under it."""
    shim, page = folder / "shim.so", folder / "control"
    source = Path(__file__).with_name("shim.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(source), "-ldl"]
    subprocess.run(command, check=True)
    page.write_bytes(bytes(mmap.PAGESIZE))
    return {"LD_PRELOAD": str(shim), "FAULT_CONTROL": str(page)}
