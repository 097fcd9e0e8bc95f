"""The edges of the command line: full disks, closed pipes, signals, ASCII terminals."""

import errno
import importlib.metadata
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from dcp_dsl import DCPError, ExchangeError, cli, extras
from dcp_dsl.cli import dcpm

DCPM = [sys.executable, "-c", "from dcp_dsl.cli import main; main()"]


def run(command, *arguments, **more):
    """Run a process; return its status, its output and its messages."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | more
    done = subprocess.run([*command, *arguments], **streams, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_full_disk_behind_standard_output_is_one_message():
    with open("/dev/full", "w") as full:
        told = "dcpm: cannot write the output: No space left on device\n"
        assert run(DCPM, "--help", stdout=full) == (2, None, told)


def test_output_that_cannot_be_written_is_one_message():
    text = (
        "import errno, io, os, sys\n"
        "class Failing(io.FileIO):\n"
        "    def write(self, data):\n"
        "        type(self).write = io.FileIO.write  # what is written at the end\n"
        "        raise OSError(errno.EIO, 'that fails')\n"
        "sys.stdout = io.TextIOWrapper(io.BufferedWriter(Failing(1, 'w', closefd=False)))\n"
    )
    told = "dcpm: cannot write the output: that fails\n"
    assert run([DCPM[0], "-c", text + DCPM[2], "--help"]) == (2, "", told)


OUTPUT = 71  # no descriptor of this process


@pytest.fixture
def nulls(monkeypatch):
    """Descriptors that were put in the place of `OUTPUT`; nothing else is prepared or changed."""
    found = []

    def dup2(old, new, *more, real=os.dup2, **rest):
        return found.append(old) if new == OUTPUT else real(old, new, *more, **rest)

    monkeypatch.setattr(os, "dup2", dup2)
    monkeypatch.setattr(cli, "_prepare", lambda: None)
    return found


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (DCPError("wrong", "a.dcpm"), 2, "dcpm: a.dcpm: wrong"),
        (ExchangeError("too far", "X301"), 1, "dcpm: error[X301]: too far"),
        (click.UsageError("no such thing"), 2, "Error: no such thing"),
        (click.Abort(), 130, "dcpm: interrupted"),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"), 2,
            "dcpm: this needs the library 'torch', which is not installed; "
            "install it: pip install 'dcp-dsl[run]'",
        ),
        (ModuleNotFoundError("No module named 'zzz'", name="zzz"), None, ""),
        (ModuleNotFoundError("what?"), None, ""),
        (FileNotFoundError(errno.ENOENT, "not there", "x"), 2, "dcpm: x: not there"),
        (OSError(errno.EIO, "that fails", "x"), 2, "dcpm: x: that fails"),
        *(
            (OSError(number, "that fails"), 2, "dcpm: cannot write the output: that fails")
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE)
        ),
        (OSError(errno.ENOENT, "that fails"), None, ""),
        (ValueError("a bug"), None, ""),
    ],
)  # fmt: skip
def test_an_error_becomes_a_message_and_a_status_or_is_a_bug(
    error, status, said, nulls, monkeypatch, capsys
):
    def fail(**_):
        raise error

    monkeypatch.setattr(cli.dcpm, "main", fail)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: OUTPUT, raising=False)
    with pytest.raises(type(error) if status is None else SystemExit) as raised:
        cli.main()
    assert capsys.readouterr().err.rstrip() == said
    assert raised.value is error or raised.value.code == status
    assert len(nulls) == ("cannot write" in said)
    for null in nulls:
        assert os.path.samestat(os.fstat(null), os.stat(os.devnull))
        os.close(null)


@pytest.mark.parametrize(("result", "status"), [(None, 0), (3, 3), (0, 0), ("text", 0)])
def test_a_command_that_returns_ends_with_its_status(result, status, nulls, monkeypatch):
    monkeypatch.setattr(cli.dcpm, "main", lambda **_: result)
    with pytest.raises(SystemExit) as raised:
        cli.main()
    assert raised.value.code == status


def test_streams_signals_and_collections_of_a_process_are_set(monkeypatch):
    handlers, thresholds, timers = {}, [], []
    before = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_IGN}
    monkeypatch.setattr(signal, "getsignal", before.get)
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "setitimer", lambda *of: timers.append(of))
    monkeypatch.setattr("gc.set_threshold", thresholds.append)
    monkeypatch.setattr(sys, "stdout", None)
    errors = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stderr", errors)
    cli._prepare()
    assert sys.stdout.name == os.devnull
    sys.stdout.close()
    print("ö", file=errors, flush=True)
    assert errors.buffer.getvalue() == b"\\xf6\n"
    assert handlers == {signal.SIGTERM: cli._leave}
    assert thresholds == [cli.FEW_COLLECTIONS]
    for end in (cli._leave, None):  # at once, and again when the timer rings
        with pytest.raises(SystemExit) as raised:
            (end or handlers[signal.SIGALRM])(signal.SIGTERM, None)
        assert raised.value.code == 128 + signal.SIGTERM
    assert timers == [(signal.ITIMER_REAL, cli.LEAVE_AGAIN_S, cli.LEAVE_AGAIN_S)]


def test_reader_that_leaves_early_causes_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        status, _, said = run(DCPM, "--help", stdout=closed)
    assert status != 0
    assert "Traceback" not in said


@pytest.mark.parametrize("closed", [1, 2])
def test_command_without_standard_streams_runs(closed: int, tmp_path: Path):
    (tmp_path / "a.dcpm").write_text("mask a=full")
    command = ["sh", "-c", f'exec "$@" {closed}>&-', "sh", *DCPM, "fmt", "a.dcpm"]
    assert run(command, cwd=tmp_path) == (0, "", "1 of 1 files changed\n" * (closed == 1))
    assert (tmp_path / "a.dcpm").read_text() == "mask a = full\n"


def test_names_print_on_a_terminal_that_knows_ascii_only(tmp_path: Path):
    (tmp_path / "ö.dcpm").write_text("mask a = q <")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    status, shown, said = run(DCPM, "check", "ö.dcpm", cwd=tmp_path, env=ascii_only)
    assert status == 1
    assert ".dcpm:1:13" in shown
    assert "Traceback" not in said


@pytest.mark.timing
@pytest.mark.parametrize("deaf", ["", "    except SystemExit:\n        time.sleep(60)\n"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_terminated_command_cleans_up_and_says_so_in_its_status(number: signal.Signals, deaf: str):
    code = (
        "import signal, sys, time, click\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # nohup has it ignored
        "from dcp_dsl import cli\n"
        "@click.command()\n"
        "def sleep():\n"
        f"    try:\n        print('asleep', flush=True); time.sleep(60)\n{deaf}"
        "    finally:\n        print('cleaned up', flush=True)\n"
        "cli.dcpm.add_command(sleep)\n"
        "cli.EntryPointGroup.get_command = lambda self, ctx, name: sleep\n"
        "sys.argv = ['dcpm', 'sleep']\n"
        f"cli.LEAVE_AGAIN_S = {2 if deaf else cli.LEAVE_AGAIN_S}\n"
        "cli.main()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asleep\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=250)
    assert (process.returncode, out, err) == (128 + number, "cleaned up\n", "")


def test_command_under_nohup_outlives_its_terminal():
    code = (
        "import os, signal\nfrom dcp_dsl import cli\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "cli.dcpm.main = lambda **_: os.kill(os.getpid(), signal.SIGHUP)\n"
        "cli.main()\n"
    )
    assert run([sys.executable, "-c", code]) == (0, "", "")


@pytest.mark.parametrize(
    ("command", "extras"),
    [("view", ["dashboard"]), ("dashboard", ["dashboard"]), ("plan", ["plan"]), ("run", ["run"]),
     ("show", []), ("check", [])],
)  # fmt: skip
def test_the_extras_of_a_command_are_looked_for_before_it_starts(command, extras, monkeypatch):
    asked = []
    monkeypatch.setattr("dcp_dsl.extras.missing_libraries", lambda extra: asked.append(extra) or [])
    shown = CliRunner().invoke(dcpm, [command, "--no-such-option"])
    assert "No such option" in shown.stderr
    assert asked == extras
    monkeypatch.setattr("dcp_dsl.extras.missing_libraries", lambda extra: ["one", "two"])
    assert CliRunner().invoke(dcpm, [command, "--help"]).exit_code == 0
    refused = CliRunner().invoke(dcpm, [command, "--no-such-option"]).exception
    told = f"`dcpm {command}` needs one, two, not installed; "
    assert isinstance(refused, DCPError) == bool(extras)
    assert not extras or str(refused) == f"{told}install it: pip install 'dcp-dsl[{extras[0]}]'"


def test_extras_are_read_from_what_the_package_requires(monkeypatch):
    lines = [
        "numpy>=2", "Torch>=2.5; extra == 'run'", "numba; extra == 'run'", "numba; extra == 'plan'",
        'flash-attn-4>=4; extra == "flash"', "pillow; extra == 'plan'", "zero; extra == 'dev'",
        "json; extra == 'run'", "not-there; extra == 'run'",
    ]  # fmt: skip
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: lines)
    found = {m: extras.extra_of(m) for m in ("numba.core", "Torch", "flash_attn", "PIL", "numpy")}
    assert found == {
        "numba.core": "plan", "Torch": "run", "flash_attn": "flash", "PIL": "plan", "numpy": None,
    }  # fmt: skip
    assert extras.extra_of("zero") is None
    assert extras.missing_libraries("nothing") == []
    assert {"not_there"} <= {*extras.missing_libraries("run")} <= {"Torch", "numba", "not_there"}
    load = extras.named_by_extra(lambda name: importlib.import_module(name), "run")
    assert load("json") is json
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(ModuleNotFoundError, match=r"`numba` needs the library 'numba', .*\[run\]"):
        load("numba")
    with pytest.raises(ModuleNotFoundError, match="No module named 'zero'"):
        load("zero")
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: None)
    assert extras.extra_of("numba") is None


def test_help_looks_for_commands_once(monkeypatch):
    asked = []

    def count(*, real=importlib.metadata.entry_points, **wanted):
        asked.append(wanted)
        return real(**wanted)

    monkeypatch.setattr(importlib.metadata, "entry_points", count)
    cli._commands.cache_clear()
    shown = CliRunner().invoke(dcpm, ["--help"]).stdout
    assert [name for name in ("check", "plan", "run", "view") if name not in shown] == []
    assert len(asked) == 1
    cli._commands.cache_clear()
    assert CliRunner().invoke(dcpm, ["show", "--mask", "causal", "--len", "8"]).exit_code == 0
    assert len(asked) == 1  # a command of the language is found without them


@pytest.mark.parametrize(
    ("arguments", "environment", "is_coloured"),
    [
        ((), {}, False),
        ((), {"FORCE_COLOR": "1"}, True),
        ((), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (("--color", "always"), {"NO_COLOR": "1"}, True),
        (("--color", "never"), {"FORCE_COLOR": "1"}, False),
    ],
)
def test_findings_and_pictures_are_coloured_as_asked(
    arguments, environment, is_coloured, tmp_path, monkeypatch
):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.setenv(name, environment.get(name, ""))
    file = tmp_path / "a.dcpm"
    file.write_text("mask a = kk <= q")
    found = CliRunner().invoke(dcpm, [*arguments, "check", str(file)], color=None)
    show = ["show", "--mask", "document", "--sample", "doc_lens = [3, 4]"]
    drawn = CliRunner().invoke(dcpm, [*arguments, *show])
    assert ("\x1b[31m" in found.stdout, "\x1b[" in drawn.stdout) == (is_coloured, is_coloured)


def test_help_lists_whole_sentences_on_a_narrow_terminal():
    shown = CliRunner().invoke(dcpm, ["--help"], terminal_width=60).stdout
    assert "..." not in shown.partition("Commands:")[2]
    told = "Write a mask on a sample in the format of an attention kernel."
    assert told in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 60


def test_the_package_runs_as_a_module():
    status, shown, _ = run([sys.executable, "-m", "dcp_dsl", "--version"])
    assert (status, shown[:5]) == (0, "dcpm ")
