"""What the commands print, which options they take, and what they start."""

import json
import webbrowser
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_help import help_texts

from dcp_dashboard import DashboardError
from dcp_dashboard.commands import dashboard, demo, view
from dcp_dashboard.demo import pipeline
from dcp_dashboard.demo.report import BatchReport, DemoReport, MaskResult, MethodReport
from dcp_runtime import TensorError


def test_help(snapshots):
    snapshots.check("help", help_texts("dashboard", "view", "demo"))


@pytest.mark.parametrize(
    ("arguments", "asked", "is_opened"),
    [
        (["runs"], (Path("runs"), "127.0.0.1", None), False),
        ([], (Path(), "127.0.0.1", None), False),
        (["runs", "--host", "::1", "--port", "1", "--open"], (Path("runs"), "::1", 1), True),
        (["runs", "--port", "65535", "--no-open"], (Path("runs"), "127.0.0.1", 65535), False),
    ],
)
def test_a_folder_is_served_and_opened_if_asked(monkeypatch, arguments, asked, is_opened):
    served, opened = [], []

    def serve(*place, on_ready):
        served.append(place)
        on_ready("http://here/")

    monkeypatch.setattr("dcp_dashboard.serve", serve)
    monkeypatch.setattr(webbrowser, "open", opened.append)
    done = CliRunner().invoke(dashboard, arguments, catch_exceptions=False)
    assert (done.stdout, done.stderr) == ("http://here/\n", "Press Ctrl-C to stop.\n")
    assert served == [asked]
    assert opened == ["http://here/"] * is_opened


@pytest.mark.parametrize(
    ("command", "option", "wrong"),
    [
        (dashboard, "--port", (0, 65536)), (demo, "--ranks", (0, 65)),
        (demo, "--tokens", (255, 65537)), (demo, "--seed", (-1, 2**31)),
        (view, "--scale", (0, 5)), (view, "--theme", ("grey",)),
    ],
)  # fmt: skip
def test_options_have_a_range(command, option, wrong):
    for value in wrong:
        done = CliRunner().invoke(command, ["x", option, str(value)][command is demo :])
        assert done.exit_code == 2
        assert f"Invalid value for '{option}'" in done.stderr


def report(*, verified=True, compile_s=0.0):
    """Two masks; bytes and seconds of every size, layouts over no, one and both caps."""

    def method(name, number, caps=()):
        size = 10**number
        return MethodReport(name, 9 * size, size // 2, size // 4, 1.05, 1.5, caps, 0.09 * number)

    methods = (
        method("portfolio", 1), method("kahypar", 6, ("compute",)),
        method("static:contiguous", 8, ("compute", "tokens")), method("static:zigzag", 7),
        method("static:ring", 9, ("tokens",)), method("static:documents", 10),
        method("static:grid", 5),  # neither the best of anything nor well known: not shown
    )  # fmt: skip
    best = {"of_all": "static:ring", "within_token_cap": "static:documents"}
    planned = BatchReport(
        "a.dcpplan", 131_072, 11, 1024, 4, 32, 2_262_199_011, 1.0, 0.5, 1092, 96, 18_348, 0.242,
        methods, best,
    )  # fmt: skip
    small = replace(planned, tokens=8000, nodes=1, devices=4, methods=methods[:3], best_static={},
                    compile_s=0.0995, density=0.1234)  # fmt: skip
    errors = tuple(
        TensorError(name, n * 1e-7, 2e-7, n * 1e-6, 3e-6, n < 3)
        for n, name in enumerate(("out", "dq", "dk", "dv"), 1)
    )
    first = MaskResult("causal", "pretrain.parquet", planned, small, True, errors, 1.912, 0.1)
    second = replace(first, mask="window(w = 4)", verified=verified, measured_s=0.05)
    return DemoReport("out/plans", 3, 793, 76.4, (first, second), compile_s)


def test_the_demonstration_prints_tables_or_json(monkeypatch, snapshots):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {1, 2, 3, process})
    texts = {}
    for title, arguments, made, url in (
        ("served", [], report(), "http://here/"),
        ("compiled", ["--no-serve"], report(compile_s=14.6), None),
        ("not verified", ["--serve"], report(verified=False), None),
        ("port taken", [], report(), DashboardError("no port")),
        ("json", ["--no-serve", "--json", "--out", "o", "--ranks", "3", "--tokens", "999",
                  "--seed", "5"], report(), None),
        ("served json", ["--json"], report(), "http://here/"),
    ):  # fmt: skip
        asked = []

        def run(config, progress, made=made, asked=asked):
            asked.append(config)
            progress("compiling")
            return made

        def serve(folder, on_ready, url=url, asked=asked):
            asked.append(folder)
            if isinstance(url, Exception):
                raise url
            on_ready(url)

        monkeypatch.setattr(pipeline, "run_demo", run)
        monkeypatch.setattr("dcp_dashboard.serve", serve)
        done = CliRunner().invoke(demo, arguments, env={"COLUMNS": "80"})
        shown = done.stdout
        assert "…" not in shown  # no figure is cut off
        if "--json" in arguments:
            found = json.loads(shown)
            shown = json.dumps({**found, "masks": len(found["masks"])})
        elif title != "served":  # the tables are the same
            told = [line for line in shown.split("\n") if line.startswith("error ")]
            shown = "\n".join([*told, shown[shown.index("Speed: ") :]])
        told = [*map(str, asked), f"status {done.exit_code} {done.exception!r}", shown, done.stderr]
        texts[title] = "\n".join(line.rstrip() for line in "\n".join(told).split("\n"))
    snapshots.check("demo", texts)
