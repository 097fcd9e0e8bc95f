"""Readers of option values that `dcpm plan` and `dcpm step` share."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dcp_dsl import Mask, Spec, Stack

_FACTORS = {"k": 1 << 10, "M": 1 << 20}
_MOST_DIGITS = 18  # int64; from 4,301 digits on Python refuses to read a number


def _is_count(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def or_auto(least: int, most: int, unit: str = "") -> Callable[..., int | str]:
    """Return a callback that reads a number in a range, or ``auto``."""

    def read(ctx: click.Context, param: click.Parameter, value: str) -> int | str:
        if value == "auto":
            return value
        if not _is_count(value) or not least <= int(value) <= most:
            raise click.BadParameter(f"expected {least} to {most}{unit} or auto, got {value!r}")
        return int(value)

    return read


def parse_tokens(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """Read a number of tokens as the language writes it: 8192, 8_192 or 8k."""
    factor = _FACTORS.get(value[-1:], 1)
    digits = (value[:-1] if factor > 1 else value).replace("_", "")
    if not _is_count(digits) or int(digits) < 1:
        raise click.BadParameter(
            f"expected a number of tokens, at least 1, such as 8192 or 8k, got {value!r}"
        )
    return int(digits) * factor


def parse_heads(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, int, int] | None:
    """Read the three numbers of Q/KV/D."""
    if value is None:
        return None
    parts = value.split("/")
    if len(parts) != 3 or not all(map(_is_count, parts)):
        raise click.BadParameter(f"expected three numbers such as 8/2/128, got {value!r}")
    q_heads, kv_heads, head_dim = (int(part) for part in parts)
    return q_heads, kv_heads, head_dim


def chosen_masks(spec: "Spec", call: str | None) -> "Mask | Stack":
    """Find the mask or stack of a call, or the only one of the spec if no call is given."""
    from dcp_planner.batches.batch import find_masks

    known = [*spec.masks, *spec.stacks]
    if call is None and len(known) != 1:
        raise click.UsageError(
            f"choose a mask or stack with --mask; {spec.name} has "
            f"{', '.join(known) or 'none of its own'}"
        )
    return find_masks(spec, known[0] if call is None else call)
