"""What the commands of this room have in common: JSON on stdout, words on stderr."""

from typing import Any

import click

from dcp_planner.report.json_text import json_text


def say(text: str) -> None:
    """Tell the person what happens, off the data."""
    click.echo(text, err=True)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `Any`: what JSON holds. Infinity and NaN become ``null``."""
    click.echo(json_text(document))
