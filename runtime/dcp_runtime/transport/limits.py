"""How long ranks wait for each other.

This module loads no torch: commands check their options with it.
"""

from dcp_runtime.errors import RunError

MAX_TIMEOUT_S = 86_400.0
"""Longest wait for a rank, a day: gloo and the clocks of the operating system accept it."""


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout that no clock accepts.

    >>> check_timeout(float("nan"))
    Traceback (most recent call last):
    ...
    dcp_runtime.errors.RunError: expected a timeout above 0 and at most 86400 s, got nan s
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise RunError(
            f"expected a timeout above 0 and at most {MAX_TIMEOUT_S:.0f} s, got {timeout_s:g} s"
        )


def describe_wait(error: str, timeout_s: float) -> str:
    """Describe how long a rank waited, from an error message of gloo or of the store.

    Of an unknown message the first line is returned.

    >>> describe_wait("[/src/buffer.cc:78] Timed out waiting 1ms for recv to complete", 0.001)
    '0.001 s long'
    """
    if "Timed out" in error or "timeout" in error:
        return f"{timeout_s:g} s long"
    if "onnection" in error:  # with a capital letter or a small one
        return "until its connection broke"
    return error.splitlines()[0] if error else "for an unknown reason"
