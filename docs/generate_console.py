"""Fill the ```console blocks of the documents with the output of their commands.

A block holds lines ``$ dcpm ...`` or ``$ cat FILE``, each followed by its output. The commands of a
document run in one copy of ``examples/masks``, so a command may read files that an earlier one
wrote.

A line ``<!-- run: dcpm ... -->`` runs a command before all blocks and shows no output. Planning is
run so, because it prints how long it took.

```
python docs/generate_console.py [--check]
```
"""

import argparse
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from dcp_dsl import DCPError
from dcp_dsl.cli import dcpm

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    "docs/audit.md",
    "docs/concepts.md",
    "docs/datasets.md",
    "docs/debugging-masks.md",
    "docs/looking-at-masks.md",
    "docs/why-plans-are-slow.md",
    "docs/steps.md",
)
FILES = ROOT / "examples" / "masks"
SILENT = re.compile(r"^<!-- run: (dcpm .*) -->$", re.MULTILINE)
# Printed on the first run on a machine only.
COMPILING = re.compile(r"^compiling the planner.*\n", re.MULTILINE)
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@contextmanager
def example_folder() -> Iterator[None]:
    """Change into a copy of the example files."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(FILES, name, dirs_exist_ok=True)
        os.chdir(name)
        try:
            yield
        finally:
            os.chdir(before)


def printed(command: str) -> str:
    """Run one command and return its output, standard output first."""
    words = shlex.split(command)
    if words[0] == "cat":
        return Path(words[1]).read_text(encoding="utf-8").rstrip("\n")
    assert words[0] == "dcpm", f"expected a dcpm command, got {command}"
    result = CliRunner(env={"COLUMNS": "80"}).invoke(dcpm, words[1:], prog_name="dcpm")
    shown = result.stdout + COMPILING.sub("", result.stderr)
    if isinstance(result.exception, DCPError):
        shown += f"dcpm: {result.exception}"
    elif result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return shown.rstrip("\n")


def filled(text: str) -> str:
    """Return a document whose blocks hold the present output of their commands."""

    def fill(block: re.Match[str]) -> str:
        commands = [line[2:] for line in block[1].splitlines() if line.startswith("$ ")]
        shown = "\n\n".join(f"$ {command}\n{printed(command)}".rstrip() for command in commands)
        return f"```console\n{shown}\n```"

    with example_folder():
        for command in SILENT.findall(text):
            printed(command)
        return BLOCK.sub(fill, text)


def main() -> None:
    """Rewrite the documents, or with ``--check`` only compare them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if one is stale")
    is_check = parser.parse_args().check
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        now = filled(text)
        if now != text:
            stale.append(name)
            if not is_check:
                path.write_text(now, encoding="utf-8")
    print(", ".join(stale) or "all in step")
    sys.exit(int(bool(stale) and is_check))


if __name__ == "__main__":
    main()
