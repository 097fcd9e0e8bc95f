"""Put the playground into a folder: its page, Python for browsers, and the language.

```
python docs/playground/build_playground.py build/site/playground [--wheel numpy-...-wasm32.whl]
```

Pyodide comes from npm, in the version and with the hash of `package-lock.json`. With a wheel of
numpy for Pyodide the playground takes samples up to 4,096 tokens, else up to 512.
"""

import argparse
import importlib.util
import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ("index.html", "playground.css", "playground.js", "worker.js")
PYODIDE = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "python_stdlib.zip",
    "pyodide-lock.json",
)
SUFFIXES = {".py", ".pyi", ".lark", ".dcpm", ".typed"}


def sources() -> Iterator[tuple[str, Path]]:
    """Yield what Python imports in the browser, by its path there."""
    packages = [ROOT / "dcp_dsl" / "dcp_dsl", ROOT / "grammar" / "dcp_grammar"]
    for name in ("lark", "lazy_loader"):
        spec = importlib.util.find_spec(name)
        assert spec is not None, "a dependency of dcp_dsl"
        assert spec.origin is not None, "a package"
        packages.append(Path(spec.origin).parent)
    for package in packages:
        for path in sorted(package.rglob("*")):
            if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                yield f"{package.name}/{path.relative_to(package).as_posix()}", path
    for name in ("answer", "numpy_free", "plain_layout", "reference", "stand_ins", "statements"):
        yield f"{name}.py", HERE / f"{name}.py"


def build(out: Path, wheels: tuple[Path, ...] = ()) -> None:
    """Write the playground.

    Args:
        out: the folder, made anew.
        wheels: for Pyodide, loaded before the language.

    Raises:
        SystemExit: if npm is not there, or what it fetches is not what the lock names.
    """
    shutil.rmtree(out, ignore_errors=True)
    (out / "pyodide").mkdir(parents=True)
    for name in PAGE:
        shutil.copy(HERE / name, out)
    with zipfile.ZipFile(out / "playground.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sources():
            archive.write(path, name)
    for wheel in wheels:
        shutil.copy(wheel, out)
    (out / "wheels.json").write_text(json.dumps([wheel.name for wheel in wheels]))
    pyodide = package("pyodide")
    for name in PYODIDE:
        shutil.copy(pyodide / name, out / "pyodide")
    if not wheels:
        script = HERE / "snapshot.mjs"
        files = pyodide, (out / "playground.zip").resolve(), (out / "snapshot.gz").resolve()
        subprocess.run(["node", script, *files], check=True)


def package(name: str) -> Path:
    """Return the folder of a package of npm, all of which are fetched once.

    Raises:
        SystemExit: if npm is not there, or what it fetches is not what the lock names.
    """
    folder = ROOT / "build" / "npm"
    files = [HERE / "package.json", HERE / "package-lock.json"]
    copies = [folder / path.name for path in files]
    if not all(
        copy.exists() and copy.read_text() == path.read_text()
        for copy, path in zip(copies, files, strict=True)
    ):
        npm = shutil.which("npm")
        if npm is None:
            raise SystemExit("the site needs npm, to fetch Pyodide; `make docs` brings it")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        for path in files:
            shutil.copy(path, folder)
        if subprocess.run(command, cwd=folder, check=False).returncode:
            shutil.rmtree(folder)
            raise SystemExit(f"{' '.join(command)} failed in {folder}")
    return folder / "node_modules" / name


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--wheel", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    build(arguments.out, tuple(arguments.wheel))
