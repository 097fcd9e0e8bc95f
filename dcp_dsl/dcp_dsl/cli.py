"""The `dcpm` command; every package adds its subcommands through an entry point.

Only the command that was typed is imported. At module level the `commands` of a package import
click alone, so that help and completion stay quick.
"""

import errno
import gc
import os
import re
import signal
import sys
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NoReturn

import click

from dcp_dsl.errors import DCPError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "dcpm.commands"
MODULES = {  # of the language's own commands, below `dcp_dsl.commands`
    "blocks": "masks", "check": "texts", "diff": "masks", "explain": "masks", "export": "exchange",
    "fmt": "texts", "import": "exchange", "init": "exchange", "lsp": "texts", "show": "masks",
}  # fmt: skip
INTERRUPTED = 130  # the status that shells give a process ended by Ctrl-C
FEW_COLLECTIONS = 50_000  # new objects between two; with Python's 700 they take a tenth of `show`


class EntryPointGroup(click.Group):
    """A click group that finds its commands among the entry points of the installed packages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, without importing them."""
        return sorted(_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command, or return ``None`` if no package has it."""
        if own := _own_command(cmd_name):
            return own
        found = _commands().get(cmd_name)
        if found is None:
            return None
        command = found.load()
        assert isinstance(command, click.Command), f"{found.value} is no click command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List every command with the first sentence of its help, whole."""
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            assert command is not None, name
            paragraph = " ".join((command.help or "").partition("\n\n")[0].split())
            rows.append((name, re.split(r"(?<=\.)\s", paragraph)[0]))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that was typed; for a typing error, name the command that is meant."""
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            from dcp_dsl.syntax.diagnostics import did_you_mean

            hint = did_you_mean(name, self.list_commands(ctx)) or "`dcpm --help` lists them"
            ctx.fail(f"there is no command `{name}`; {hint}")
        # Completion and `--help` work without the libraries.
        if not ctx.resilient_parsing and not {*ctx.help_option_names} & {*args}:
            _check_libraries(name)
        return super().resolve_command(ctx, args)


def _own_command(name: str) -> click.Command | None:
    """Import a command of the language by its module: reading entry points is slow."""
    if name not in MODULES:
        return None
    module = import_module(f"dcp_dsl.commands.{MODULES[name]}")
    found: click.Command = getattr(module, "import_" if name == "import" else name)
    return found


@cache  # the help asks for every command, and looking reads what all installed packages say
def _commands() -> "dict[str, EntryPoint]":
    from importlib.metadata import entry_points

    return {found.name: found for found in entry_points(group=GROUP)}


LEAVE_AGAIN_S = 10.0
"""Time after which a command that a signal has not ended is asked again; cleaning up takes less."""


@click.group(cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="dcp-dsl", message="dcpm %(version)s")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
    help="When to use colour. auto: on a terminal, unless NO_COLOR or FORCE_COLOR is set.",
)  # fmt: skip
@click.pass_context
def dcpm(ctx: click.Context, color: str) -> None:
    """Write attention masks, plan context parallelism for each batch, run and inspect the plans.

    Exit status: 0 success, 1 findings (a failed check or verification), 2 invalid usage or input.
    """
    if color != "auto":  # rich reads the variables, too
        os.environ.pop("NO_COLOR", None)
        os.environ.pop("FORCE_COLOR", None)
        os.environ["FORCE_COLOR" if color == "always" else "NO_COLOR"] = "1"
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    elif os.environ.get("FORCE_COLOR"):
        ctx.color = True


def main() -> None:
    """Run `dcpm`; errors that a person can mend become one message and an exit status."""
    _prepare()
    try:
        status = dcpm.main(prog_name="dcpm", standalone_mode=False)
        sys.stdout.flush()  # a full disk is reported here, not after the end of Python
    except DCPError as error:
        _fail(f"dcpm: {error}", error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:  # Ctrl-C
        _fail("dcpm: interrupted", INTERRUPTED)
    except ModuleNotFoundError as error:
        _fail(f"dcpm: {_missing(error)}", DCPError.exit_code)
    except OSError as error:
        _fail(f"dcpm: {_told(error)}", DCPError.exit_code)
    sys.exit(status if isinstance(status, int) else 0)


def _prepare() -> None:
    """Set up the streams, the garbage collector and the signals of the process."""
    # First of all, so that every message can be printed somewhere.
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller closed it: `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may know ASCII only
    gc.set_threshold(FEW_COLLECTIONS)  # imports make many objects, and none of them is garbage
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP; so do we
            signal.signal(number, _leave)


def _check_libraries(name: str) -> None:
    """Refuse a command whose libraries are not installed, before it starts any work."""
    found = None if _own_command(name) else _commands().get(name)
    if found is None or not found.extras:
        return
    from dcp_dsl.extras import install_line, missing_libraries

    for extra in found.extras:
        if missing := missing_libraries(extra):
            raise DCPError(
                f"`dcpm {name}` needs {', '.join(missing)}, not installed; {install_line(extra)}"
            )


def _missing(error: ModuleNotFoundError) -> str:
    """Name the extra that installs a missing library; re-raise if there is none."""
    from dcp_dsl.extras import extra_of, install_line

    extra = extra_of(error.name or "")
    if extra is None:
        raise error
    return f"this needs the library {error.name!r}, which is not installed; {install_line(extra)}"


def _told(error: OSError) -> str:
    """Describe an error of files or disks; re-raise all others."""
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE):
        raise error
    # Otherwise the interpreter tries, and fails, to flush once more at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return f"cannot write the output: {error.strerror}"


def _leave(number: int, _: object) -> NoReturn:
    def end(*_: object) -> NoReturn:
        sys.exit(128 + number)  # as a shell counts, after everything has cleaned up behind itself

    # The exception is lost in a finaliser, or where a library catches everything: ask again then.
    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, LEAVE_AGAIN_S, LEAVE_AGAIN_S)
    end()


def _fail(message: str, status: int) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(status)
