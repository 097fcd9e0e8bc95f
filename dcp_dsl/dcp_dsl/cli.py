"""The `dcpm` command: a group whose subcommands each room brings through an entry point.

Only the command that was typed is imported with what it needs; a room's `commands` module imports
nothing heavier than click, so that help and completion stay quick.
"""

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

import click

from dcp_dsl.errors import DCPError

GROUP = "dcpm.commands"
INTERRUPTED = 130  # what a shell gives for a process ended by Ctrl-C


class EntryPointGroup(click.Group):
    """A click group that finds its commands among the entry points of the installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Give the names of all commands, without importing them."""
        return sorted(entry_points(group=GROUP).names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or give ``None`` if nobody brings it."""
        found: list[EntryPoint] = list(entry_points(group=GROUP, name=cmd_name))
        if not found:
            return None
        command = found[0].load()
        assert isinstance(command, click.Command), f"{found[0].value} is no click command"
        return command


@click.group(cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dcp-dsl", message="dcpm %(version)s")
def dcpm() -> None:
    """Write attention masks, plan context parallelism for each batch, run it, look at it.

    Exit status: 0 ok, 1 findings (a failed check or verification), 2 wrong usage or input.
    """


def main() -> None:
    """Run `dcpm`; what a person can mend becomes one message and an exit status."""
    try:
        status = dcpm.main(prog_name="dcpm", standalone_mode=False)
    except DCPError as error:
        _fail(f"dcpm: {error}", error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:  # Ctrl-C
        _fail("dcpm: interrupted", INTERRUPTED)
    except OSError as error:
        if error.filename is None:  # not about a file that somebody named: a bug
            raise
        _fail(f"dcpm: {error.filename}: {error.strerror}", DCPError.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(status)
