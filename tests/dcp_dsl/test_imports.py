"""Imports: what another file brings, and everything that can be wrong with it."""

import numpy as np
import pytest

from dcp_dsl import Sample, check, dense_mask, load


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            path = tmp_path / f"{name.replace('__', '/')}.dcpm"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        return tmp_path

    return write


LIBRARY = """
segment doc = [doc_lens]*
token evict
mask packed(window: tokens = 4) = near(window) per doc
mask near(window: tokens) = sliding(window)
stack two = packed, causal
"""


def test_an_imported_mask_keeps_the_names_of_its_own_file(folder):
    path = folder(
        lib=LIBRARY, main='import packed from "lib.dcpm"\nmask near = causal\nmask a = packed(2)'
    )
    spec = load(path / "main.dcpm")
    sample = Sample({"doc_lens": [3, 2]}, 5)
    assert spec.mask("a").columns == {"doc_lens"}
    assert spec.mask("packed(2)").bind(sample).num_pairs == 5 + 3
    assert np.array_equal(
        dense_mask(spec.mask("a"), sample), dense_mask(spec.mask("packed(2)"), sample)
    )


def test_segments_tokens_and_stacks_can_be_imported(folder):
    path = folder(
        lib=LIBRARY,
        main='import doc, evict, two from "lib.dcpm"\nmask a = causal and same(doc) and q < k.evict'
        '\nsample s(doc_lens = [2, 1], evict = [3, 3, 3])\ncheck a total on s\nfor "*" use two',
    )
    spec = load(path / "main.dcpm")
    assert check((path / "main.dcpm").read_text(), str(path / "main.dcpm")) == ()
    assert spec.mask("a").columns == {"doc_lens", "evict"}
    assert [mask.name for mask in spec.stack("two").masks] == ["packed", "causal"]
    assert spec.attachment("x", ["doc_lens", "len"]).stack.period == 2


def test_a_text_that_is_no_file_cannot_import(folder, monkeypatch):
    monkeypatch.chdir(folder(lib="mask a = causal"))
    text = 'import a from "lib.dcpm" mask b = a'
    for name, codes in (("<text>", ["E130"]), ("-", ["E130"]), ("<main>.dcpm", [])):
        assert [d.code for d in check(text, name)] == codes


def test_a_link_out_of_the_folder_is_not_followed(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "far.dcpm"
    outside.write_text("mask far = causal")
    path = folder(main='import far from "far.dcpm"')
    (path / "far.dcpm").symlink_to(outside)
    (found,) = check('import far from "far.dcpm"', str(path / "main.dcpm"))
    assert (found.code, "lies outside" in found.message) == ("E130", True)


def test_very_many_files_are_refused(folder):
    files = {f"f{i}": "mask m = causal" for i in range(70)}
    path = folder(**files)
    main = "\n".join(f'import m from "f{i}.dcpm"' for i in range(70))
    assert "E130" in {d.code for d in check(main, str(path / "main.dcpm"))}
