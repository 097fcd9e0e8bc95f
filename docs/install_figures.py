"""Install a wheel in clean environments, as a new user would, and measure the first steps.

```
python docs/install_figures.py dist/*.whl     # writes docs/install.json; needs a package index
python docs/install_figures.py --table docs/install.json
```

Seconds are CPU seconds of processes and their children; sizes are those of site-packages, bytecode
included, without pip and setuptools. A command that fails ends the script.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

RESULTS = Path(__file__).with_name("install.json")
MASK = """segment part = question[question_len] branch answer[answer_lens]*
mask mine = causal and (k in question or same(answer))
"""
PLAN = (
    "plan mine.dcpm --mask mine --cluster h100-dgx:1x8 --against static --out mine.dcpplan --sample"
)
SAMPLE = "question_len = 8k, answer_lens = [40k, 30k, 20k, 10k, 20k]"
TOOLS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")


def main() -> None:
    """Measure and print the table, or only print the table of an earlier measurement."""
    parser = argparse.ArgumentParser(description="Measure the first steps after an installation.")
    parser.add_argument("wheel", type=Path, nargs="?")
    parser.add_argument("--table", type=Path)
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(asked.table.read_text())))
        return
    found = measure(asked.wheel.resolve())
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(table(found))


def measure(wheel: Path) -> dict[str, object]:
    """Install the language alone, then the planner, each in an environment of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "mine.dcpm").write_text(MASK)
        core = install(folder, wheel, "")
        first_show = spend(folder, core["dcpm"], "show", "mine.dcpm", "--mask", "mine")
        shows = [
            spend(folder, core["dcpm"], "show", "mine.dcpm", "--mask", "mine") for _ in range(5)
        ]
        refused = subprocess.run(
            [core["dcpm"], "plan", "mine.dcpm"], cwd=folder, capture_output=True, text=True
        )
        assert refused.returncode == 2, refused
        assert "pip install 'dcp-dsl[plan]'" in refused.stderr, refused.stderr
        plan = install(folder, wheel, "[plan]")
        plans = [spend(folder, plan["dcpm"], *PLAN.split(), SAMPLE) for _ in range(3)]
    with zipfile.ZipFile(wheel) as archive:
        is_compiled = any("dcp_planner/compiled/" in file for file in archive.namelist())
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "wheel_mb": wheel.stat().st_size / 1e6,
        "is_compiled": is_compiled,
        "core_mb": core["mb"], "core_s": core["seconds"],
        "first_show_s": first_show, "show_s": min(shows),
        "plan_mb": plan["mb"], "plan_install_s": plan["seconds"],
        "first_plan_s": plans[0], "next_plan_s": min(plans[1:]),
    }  # fmt: skip


def install(folder: Path, wheel: Path, extra: str) -> dict[str, object]:
    """Make an environment and install the wheel with an extra; return seconds and megabytes."""
    home = folder / f"environment{extra.strip('[]')}"
    venv.create(home, with_pip=True)
    pip = (home / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check")
    seconds = spend(folder, *pip, f"{wheel}{extra}")
    site = next((home / "lib").glob("python*/site-packages"))
    files = [
        path
        for top in site.iterdir()
        if not top.name.startswith(TOOLS)
        for path in (top.rglob("*") if top.is_dir() else [top])
    ]
    size = sum(path.stat().st_size for path in files if path.is_file())
    return {"dcpm": home / "bin" / "dcpm", "seconds": seconds, "mb": size / 1e6}


def spend(folder: Path, *command: object) -> float:
    """Run a command and return its CPU seconds, those of its children included."""
    # A clean environment: nothing of this one's Python, but the settings of pip's index.
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=kept | pip | {"HOME": str(folder)},
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table(found: dict[str, float]) -> str:
    """Return the figures as Markdown."""
    core = f"{found['core_mb']:.0f} MB, {found['core_s']:.1f} s"
    plan = f"{found['plan_mb']:.0f} MB, {found['plan_install_s']:.1f} s"
    show = f"{found['show_s']:.2f} s, at first {found['first_show_s']:.2f} s"
    plans = f"{found['next_plan_s']:.1f} s, at first {found['first_plan_s']:.1f} s"
    return "\n".join([
        "| step | size, CPU |", "|---|--:|",
        f"| installing the wheel: the language alone | {core} |",
        f"| `dcpm show` | {show} |",
        f"| installing it with `[plan]`: the planner, too | {plan} |",
        f"| `dcpm plan`, the batch above beside all static layouts | {plans} |",
    ])  # fmt: skip


if __name__ == "__main__":
    main()
