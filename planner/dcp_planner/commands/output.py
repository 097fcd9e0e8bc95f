"""What the commands of this room have in common: JSON on stdout, words on stderr."""

import json
import math
from pathlib import Path
from typing import Any

import click


def say(text: str) -> None:
    """Tell the person what happens, off the data."""
    click.echo(text, err=True)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `Any`: what JSON holds. Infinity and NaN become ``null``."""
    click.echo(json.dumps(_finite(document), indent=1, allow_nan=False))


def check_folder_of(out: str) -> None:
    """Refuse before the work what cannot be written after it."""
    folder = Path(out).absolute().parent
    if not folder.is_dir():
        raise click.BadParameter(
            f"{folder} is no folder; choose one that exists", param_hint="--out"
        )


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
