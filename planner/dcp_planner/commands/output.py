"""Print JSON to standard output and messages to standard error."""

from typing import Any

import click

from dcp_planner.report.json_text import json_text


def say(text: str) -> None:
    """Print a message to standard error, away from the data."""
    click.echo(text, err=True)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document; `Any`: what JSON holds. Infinity and NaN become ``null``."""
    click.echo(json_text(document))
