"""Build the wheel from the sdist, and use it where a stranger would: outside the checkout.

Run as a script by `make test`. It fails when the wheel claims top-level names that are not ours,
lacks package data, or when `dcpm check` on a mask of the standard library does not work from it.
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {"dcp_grammar", "dcp_dsl", "dcp_planner", "dcp_runtime", "dcp_dashboard"}
DATA = {
    "dcp_grammar/dcpm.lark",
    "dcp_grammar/masks/causal.dcpm",
    "dcp_dashboard/assets",
    "dcp_dashboard/demo/demo.dcpm",
    *(
        f"dcp_dsl/syntax/diagnostics-{family}.md"
        for family in ("syntax", "names", "warnings", "formats")
    ),
    *(f"{name}/py.typed" for name in PACKAGES),
    *(f"{name}/__init__.pyi" for name in PACKAGES - {"dcp_grammar"}),
}


def main() -> None:
    """Build, inspect, install, run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel = build(folder)
        inspect(wheel)
        use(wheel, folder)
    print(
        f"{wheel.name}: built from the sdist, top-level names and data as expected, works installed"
    )


def build(folder: Path) -> Path:
    """Return the wheel that `python -m build` makes from the sdist it made."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {Path(*Path(m).parts[1:]).as_posix() for m in archive.getnames()}
    missing = {"README.md", "LICENSE", "tests/check_wheel.py", "examples/demo.dcpm"} - members
    assert not missing, f"the sdist lacks {sorted(missing)}"
    (wheel,) = folder.glob("*.whl")
    return wheel


def inspect(wheel: Path) -> None:
    """Check top-level names and package data."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {n.split("/")[0] for n in names if ".dist-info/" not in n}
    assert top == PACKAGES, f"expected the top-level names {sorted(PACKAGES)}, got {sorted(top)}"
    missing = {d for d in DATA if not any(n == d or n.startswith(f"{d}/") for n in names)}
    assert not missing, f"the wheel lacks {sorted(missing)}"


def use(wheel: Path, folder: Path) -> None:
    """Install the wheel in an environment of its own and check a bundled mask from elsewhere."""
    environment = folder / "environment"
    # Dependencies come from the environment that runs this script; only our package is installed.
    venv.create(environment, with_pip=False)
    site = next((environment / "lib").glob("python*/site-packages"))
    outer = next(p for p in map(Path, sys.path) if p.name == "site-packages")
    (site / "outer.pth").write_text(f"{outer}\n")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(site),
            str(wheel),
        ],
        check=True,
    )
    code = (
        "import sys\n"
        "for extra in ('numba', 'pyarrow', 'PIL', 'rich', 'torch', 'dash'):\n"
        "    sys.modules[extra] = None\n"  # as if the language alone were installed
        "import dcp_dsl, dcp_grammar, pathlib\n"
        "home = pathlib.Path(dcp_dsl.__file__)\n"
        f"assert home.is_relative_to({str(environment)!r}), home\n"
        "sys.argv = ['dcpm', 'check', str(dcp_grammar.MASKS / 'causal.dcpm')]\n"
        "from dcp_dsl.cli import main; main()\n"
    )
    subprocess.run([str(environment / "bin" / "python"), "-c", code], check=True, cwd=folder)


if __name__ == "__main__":
    main()
