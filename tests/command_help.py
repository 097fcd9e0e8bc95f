"""The help of the commands of `dcpm`, for tests."""

from unittest.mock import patch

import click
from click.testing import CliRunner

from dcp_dsl.cli import dcpm


def help_texts(*names: str) -> dict[str, str]:
    """Return the help of commands of `dcpm` by their names, whoever asked for it before."""
    texts = {}
    for name in names:
        command = dcpm.get_command(click.Context(dcpm), name)
        # A command keeps the option with the names that its first caller had for it.
        with patch.object(command, "_help_option", None):
            shown = CliRunner().invoke(dcpm, [name, "--help"], terminal_width=80)
        texts[f"{name} --help"] = shown.output
    return texts
