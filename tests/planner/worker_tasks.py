"""Tasks of the worker processes of `test_workers`: each request names one, or a fault."""

import os
import signal
import subprocess
import sys
import time

from dcp_dsl import DatasetError


def start(*arguments):
    return lambda message, blob, tell: FAULTS[message["do"]](message, blob, tell, arguments)


def start_badly():
    print("half a word")
    raise OSError("no such library")


def start_never():
    while True:
        time.sleep(60)


def echo(message, blob, tell, arguments):
    print("printed from Python", flush=True)
    os.write(1, b"printed from C\n")
    tell({"at": "half"})
    return {"message": message, "arguments": arguments, "pid": os.getpid()}, blob


def refuse(*_):
    raise DatasetError("expected a better row")


def kill(message, *_):
    os.kill(os.getpid(), signal.Signals[message["signal"]])


def hang(_, __, tell, ___):
    tell("hanging")
    while True:
        time.sleep(60)


def chatter(_, __, tell, ___):
    while True:
        tell("still here")


def socket_number():
    return int(sys.argv[1])


def send_garbage(message, *_):
    os.write(socket_number(), message["bytes"].encode("latin-1"))
    time.sleep(60)


def hang_up(*_):
    os.close(socket_number())
    time.sleep(60)


def fail(*_):
    print("last words of Python", file=sys.stderr)
    raise ZeroDivisionError("by nought")


def leave(*_):
    sys.exit(7)


def leave_a_child(*_):
    print(subprocess.Popen(["sleep", "600"]).pid)
    sys.exit(7)


def fill(*_):
    return {"size": len(bytearray(1 << 30))}, b""


def print_much(*_):
    os.write(2, b"x" * 1_000_000)
    return {}, b""


def hold_the_interpreter(_, __, tell, ___):
    import ctypes

    tell("holding")
    ctypes.PyDLL(None).sleep(600)  # with Python's lock


def list_files(*_):
    return {"files": sorted(os.listdir("/proc/self/fd"))}, b""


FAULTS = {
    function.__name__: function
    for function in (
        echo, refuse, kill, hang, chatter, send_garbage, hang_up, fail, leave, leave_a_child, fill,
        print_much, hold_the_interpreter, list_files,
    )
}  # fmt: skip
