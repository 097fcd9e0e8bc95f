"""Comparisons with kept texts: equal, changed, missing, written anew."""

import pytest
from snapshots import Snapshots


def test_texts_equal_those_that_were_kept(tmp_path):
    texts = {"a": "one\ntwo", "b": "three"}
    with pytest.raises(AssertionError, match="2 found"):
        Snapshots(tmp_path, is_update=False).check("x", texts)
    Snapshots(tmp_path, is_update=True).check("x", texts)
    Snapshots(tmp_path, is_update=False).check("x", texts)
    with pytest.raises(AssertionError, match=r"(?s)-two.*\+2"):
        Snapshots(tmp_path, is_update=False).check("x", {"a": "one\n2", "b": "three"})
    with pytest.raises(AssertionError, match="2 texts kept, 1 found"):
        Snapshots(tmp_path, is_update=False).check("x", {"a": "one\ntwo"})
    with pytest.raises(AssertionError, match="2 texts kept, 2 found"):
        Snapshots(tmp_path, is_update=False).check("x", {"b": "three", "a": "one\ntwo"})
