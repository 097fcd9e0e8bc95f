"""What `dcpm run --emulate` prints: the document and the text of an `Emulation`."""

import textwrap

from dcp_runtime.emulation.emulate import MOST_HOST_SHARE, Emulation

SHOWN = (
    "The emulation shows how programs, waits and relays run, and what messages that share ports "
    "cost. It cannot show the time of kernels, which it takes from the cost model, nor what NCCL, "
    "switches and other traffic do."
)
"""What an emulation can and cannot show."""


def to_json(found: Emulation) -> dict[str, object]:
    """Return the document that ``dcpm run --emulate --json`` prints."""
    trace = found.trace
    return {
        "schema": "dcp.emulate/1",
        "devices": found.devices,
        "dilation": found.dilation,
        "overlap": found.is_overlapped,
        "predicted_s": found.predicted_s,
        "virtual_s": found.virtual_s,
        "seconds": list(found.seconds),
        "median_s": found.median_s,
        "forward_s": trace.seconds(is_backward=False),
        "backward_s": trace.seconds(is_backward=True),
        "ratio": found.ratio,
        "spread": found.spread,
        "host_share": found.host_share,
        "shows": SHOWN,
    }


def to_text(found: Emulation) -> str:
    """Return the result as text."""
    trace, predicted = found.trace, "predicted"
    if not found.is_overlapped:
        predicted = "predicted with overlap"
    lines = [
        f"{found.devices} emulated devices, {found.dilation:g} times slower than real ones: "
        f"{found.median_s * 1e3:.3f} ms (forward {trace.seconds(is_backward=False) * 1e3:.3f}, "
        f"backward {trace.seconds(is_backward=True) * 1e3:.3f})",
        f"  {found.predicted_s * 1e3:.3f} ms {predicted}: measured / predicted {found.ratio:.3f}",
        f"  {len(found.seconds)} runs within {found.spread:.1%}; this machine added "
        f"{found.host_share:.1%} to {found.virtual_s * 1e3:.3f} ms in virtual time",
    ]
    if found.host_share > MOST_HOST_SHARE:
        lines.append(
            f"  that is more than {MOST_HOST_SHARE:.0%}: the machine is too busy for this "
            f"dilation; stop other programs, or say --dilation {found.dilation * 4:g}"
        )
    return "\n".join([*lines, *textwrap.wrap(SHOWN, 100)])
