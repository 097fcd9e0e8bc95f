"""Texts to start from: the library, files of the folder and of plans, nothing else."""

import os
from urllib.parse import urlencode

import pytest

from dcp_dashboard.editing.routes import batch_of, home_of
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages.edit import folder_files, library_texts, start_of
from dcp_dsl import DCPError, check


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "served"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "own.dcpm").write_text("mask own = causal", encoding="utf-8")
    (root / "bytes.dcpm").write_bytes(b"\xff\xfe")
    (root / "big.dcpm").write_text("#" * 200_001)
    (root / ".hidden").mkdir()
    (root / ".hidden" / "no.dcpm").write_text("mask no = causal")
    (tmp_path / "secret.dcpm").write_text("mask secret = causal")
    (root / "link.dcpm").symlink_to(tmp_path / "secret.dcpm")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.dcpm").write_text("mask secret = causal")
    (root / "linked").symlink_to(tmp_path / "outside")
    os.mkfifo(root / "pipe.dcpm")
    return root


def start(root, spec):
    return start_of(PlanLibrary(root), "?" + urlencode({"spec": spec}))


def test_a_file_of_the_folder_is_opened_by_its_key_only(folder):
    library = PlanLibrary(folder)
    assert sorted(folder_files(library).values()) == ["big.dcpm", "bytes.dcpm", "deep/own.dcpm"]
    own = start(folder, plan_key("deep/own.dcpm"))
    assert (own.name, own.text) == ("deep/own.dcpm", "mask own = causal")
    assert home_of(library, own.home) == str(folder / "deep" / "own.dcpm")
    for wrong in ("deep/own.dcpm", str(folder / "deep" / "own.dcpm"), "../secret.dcpm", ""):
        assert home_of(library, wrong) is None
    for wrong in ("../secret.dcpm", plan_key("link.dcpm"), plan_key("pipe.dcpm"), "std:../causal"):
        with pytest.raises(DCPError):
            start(folder, wrong)


def test_a_file_that_is_no_text_or_too_large_is_refused_by_name(folder):
    for name, said in (("bytes", "cannot be read as text"), ("big", "at most 200,000")):
        with pytest.raises(DCPError, match=rf"^{name}\.dcpm: .*{said}"):
            start(folder, plan_key(f"{name}.dcpm"))


def test_a_plan_gives_the_text_that_it_was_made_from(served_folder, small_plan):
    found = start(served_folder, plan_key("small.dcpplan"))
    assert found.text == small_plan.provenance.spec
    assert found.settings["expression"] == small_plan.provenance.mask
    assert (found.settings["nodes"], found.settings["per"]) == ("2", "2")
    assert found.settings["heads"] == "4/2/64"
    assert batch_of(PlanLibrary(served_folder), found.batch) == list(small_plan.provenance.samples)


def test_every_text_to_start_from_is_right(folder):
    texts = [start_of(PlanLibrary(folder), "").text, *library_texts().values()]
    assert len(texts) > 30
    for text in texts:
        assert [d for d in check(text) if d.severity == "error"] == []
    assert start(folder, "mask a = causal").text == "mask a = causal"
