"""How long ranks wait for each other, and what is said when one has waited too long."""

from dcp_runtime.errors import RunError

MAX_TIMEOUT_S = 86_400.0
"""Longest wait for a rank, a day: what gloo and the clocks of the operating system take."""


def check_timeout(timeout_s: float) -> None:
    """Refuse a timeout that no clock takes.

    Raises:
        RunError: if it is not above 0 and at most `MAX_TIMEOUT_S`.

    >>> check_timeout(float("nan"))
    Traceback (most recent call last):
    ...
    dcp_runtime.errors.RunError: expected a timeout above 0 and at most 86400 s, got nan s
    """
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise RunError(
            f"expected a timeout above 0 and at most {MAX_TIMEOUT_S:.0f} s, got {timeout_s:g} s"
        )


def explain(error: str, timeout_s: float) -> str:
    """Say in words what gloo says with source lines; anything unknown stays as it is.

    >>> explain("[/src/buffer.cc:78] Timed out waiting 1ms for recv operation to complete", 0.001)
    '0.001 s long'
    """
    if "Timed out" in error or "timeout" in error:
        return f"{timeout_s:g} s long"
    if "onnection" in error:
        return "until its connection broke"
    return error.splitlines()[0] if error else "for an unknown reason"
