"""Comparisons with kept texts: equal, changed, missing, written anew; no file without its test."""

from pathlib import Path

import pytest
from snapshots import SECTION, Snapshots


def test_texts_equal_those_that_were_kept(tmp_path):
    texts = {"a": "one\ntwo", "b": "three"}
    kept = Snapshots(tmp_path / "x.txt", is_update=False)
    updated = Snapshots(tmp_path / "x.txt", is_update=True)
    with pytest.raises(AssertionError, match="2 found"):
        kept.check("x", texts)
    updated.check("x", texts)
    updated.check("other", {"a": "else"})
    kept.check("x", texts)
    kept.check("other", {"a": "else"})
    with pytest.raises(AssertionError, match=r"(?s)x.txt, section x.*-two.*\+2"):
        kept.check("x", {"a": "one\n2", "b": "three"})
    with pytest.raises(AssertionError, match="2 texts kept, 1 found"):
        kept.check("x", {"a": "one\ntwo"})
    with pytest.raises(AssertionError, match="2 texts kept, 2 found"):
        kept.check("x", {"b": "three", "a": "one\ntwo"})
    with pytest.raises(AssertionError, match="section z"):
        kept.check("z", texts)
    with pytest.raises(AssertionError, match="section y"):  # cannot be read back
        updated.check("y", {"a": f"one\n{SECTION}two"})


def test_every_file_of_kept_texts_has_its_test():
    kept = sorted(Path(__file__).parent.glob("**/snapshots/*.txt"))
    assert len(kept) > 9
    for path in kept:
        assert (path.parents[1] / f"test_{path.name}").with_suffix(".py").exists(), path
