"""A folder of examples, and plans made there, for the tests of the commands."""

import json
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from command_runs import SMALL, SPEC, run

from dcp_dsl.cli import main
from dcp_planner.commands.plan import plan as plan_command


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.dcpm").write_text(SPEC)
    rows = [{"len": n} for n in (30, 20, 400, 25, 0, 40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return tmp_path


@pytest.fixture
def run_main(folder, monkeypatch, capsys):
    """Run `dcpm` as a process would, but in this one: starting another costs a second."""

    def run(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["dcpm", *arguments])
        monkeypatch.setattr(signal, "signal", lambda *_: None)
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return SimpleNamespace(returncode=ended.value.code, stdout=out, stderr=err)

    return run


@pytest.fixture(scope="session")
def pair_made_once(tmp_path_factory):
    made = tmp_path_factory.mktemp("pair")
    (made / "a.dcpm").write_text(SPEC)
    for name in ("contiguous", "zigzag"):
        result = run(
            plan_command, made / "a.dcpm", "--sample", '{"len": 400}', *SMALL, "--mask", "causal",
            "--backend", f"static:{name}", "--out", made / f"{name}.dcpplan",
        )  # fmt: skip
        assert result.exit_code == 0, result.output
    return made / "contiguous.dcpplan", made / "zigzag.dcpplan"


@pytest.fixture
def pair(folder, pair_made_once):
    """Two plans of one batch: contiguous and zigzag."""
    return tuple(Path(shutil.copy(path, folder)) for path in pair_made_once)
