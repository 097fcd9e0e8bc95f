"""The notebooks of the documents run from top to bottom, and draw what they say."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
SHOWN = {
    "mask": {1: ("image/svg+xml", "<svg"), 5: ("text/html", "<iframe"), 6: ("text/html", "<img")},
    "step": {4: ("text/html", "<table")},
}
SAID = {
    "mask": "layer 0, `self_attn` (MultiheadAttention), leaks 752 pairs",
    "step": "parameters stale",
}


def test_every_notebook_is_listed_and_holds_no_results():
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == SHOWN.keys()
    for name in SHOWN:
        cells = nbformat.read(FOLDER / f"{name}.ipynb", 4).cells
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_a_notebook_runs_and_draws(name, tmp_path):
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", 4)
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    for cell, (kind, start) in SHOWN[name].items():
        (drawn,) = (out.data[kind] for out in notebook.cells[cell].outputs if "data" in out)
        assert start in drawn
    (printed,) = notebook.cells[-1].outputs
    assert SAID[name] in printed["text"]
