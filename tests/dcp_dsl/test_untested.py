"""Claims that cannot be proved: made-up samples, the smallest one shown, warnings, `--strict`."""

import json
import re
from itertools import pairwise, product

import pytest
from click.testing import CliRunner

from dcp_dsl import DatasetError, Guard, Sample, Spec, check, load
from dcp_dsl.commands.texts import check as check_command
from dcp_dsl.symbolic.intervals import Interval

LEAK = "segment img = flags(is_image)\nmask a = causal or (q in img and k in img)\n"
KEPT = "token evict\nmask a = causal and q < k.evict\n"


def shown_sample(diagnostic):
    """Return the sample that a message shows."""
    return json.loads(re.search(r"of the sample (\{.*\})", diagnostic.message)[1])


def run(tmp_path, text, *options):
    path = tmp_path / "a.dcpm"
    path.write_text(text)
    return CliRunner().invoke(check_command, [str(path), *options])


# ---- made-up columns -----------------------------------------------------------------------------


def both(values, wanted):
    """Ask if two tokens have such a value."""
    return sum(value in wanted for value in values) > 1


@pytest.mark.parametrize(
    ("text", "column", "values", "leaks"),
    [
        (LEAK, "is_image", (0, 1), lambda v: both(v, [1])),
        ("segment role = ids(r) as text, img\nmask a = causal or (q in img and k in img)", "r",
         (-1, 0, 1), lambda v: both(v, [1])),
        ("segment role = ids(r)\nmask a = causal or same(role)", "r",
         (-1, 0, 1), lambda v: any(both(v, [i]) for i in (0, 1))),
        ("segment role = ids(r) as a1, a2, a3, a4\nmask a = causal or (q in a1 and k in a4)", "r",
         (-1, 0, 3), lambda v: any(0 in v[:i] and 3 in v[i:] for i in range(len(v)))),
        ("token d\nmask a = causal or q.d == k.d", "d",
         (0, 1), lambda v: both(v, [0]) or both(v, [1])),
        ("token d\nmask a = causal or (q.d == 77 and k.d == 500)", "d",
         (0, 77, 500), lambda v: any(77 in v[:i] and 500 in v[i:] for i in range(len(v)))),
        ("segment img = flags(f)\n@ahead(img) mask a = causal or (q in img and k in img)", "f",
         (0, 1), lambda v: "0" in "".join(map(str, v)).strip("0")),
        ("segment s = positions(p)\nmask a = causal or (q.s == 0 and k.s == 1)", "p",
         (0, 1), lambda v: any(b != a + 1 for a, b in pairwise(v))),
    ],
    ids=["flags", "named ids", "ids", "far ids", "tokens", "numbers", "two images", "positions"],
)  # fmt: skip
def test_a_leak_through_a_column_is_found_with_the_smallest_sample(text, column, values, leaks):
    (found,) = check(text)
    assert found.code == "E120"
    sample = shown_sample(found)
    assert len(sample[column]) == sample["len"]
    assert leaks(sample[column])
    for shorter in range(sample["len"]):
        assert not any(leaks(list(v)) for v in product(values, repeat=shorter))
    for at, value in enumerate(sample[column]):  # no single value can become 0
        if value:
            assert not leaks([*sample[column][:at], 0, *sample[column][at + 1 :]])


def test_a_leak_through_spans_and_row_columns_is_found():
    (found,) = check("segment s = spans(im)\nmask a = causal or (q in s and k in s)")
    assert (found.code, shown_sample(found)["im"]) == ("E120", [[0, 2]])
    (found,) = check("mask a = causal or k - q < row.reach")
    assert (found.code, shown_sample(found)) == ("E120", {"reach": 2, "len": 2})


def test_columns_of_a_layout_and_per_token_are_made_up_together():
    text = (
        "segment doc = [doc_lens]*\nsegment img = flags(is_image)\n"
        "mask a = causal per doc or (same(doc) and q in img and k in img)"
    )
    (found,) = check(text)
    assert (found.code, shown_sample(found)) == (
        "E120", {"doc_lens": [2], "is_image": [1, 1], "len": 2},
    )  # fmt: skip


# ---- what stays open -----------------------------------------------------------------------------


def test_what_no_sample_shows_is_a_warning_that_names_the_column():
    (found,) = check(KEPT)
    assert (found.code, found.severity) == ("W293", "warning")
    assert "`evict`" in found.message
    (given,) = re.findall(r"add `(sample .*?)`", found.hint)
    filled = given.replace("evict = ...", "evict = [3, 2, 3]").replace("len = ...", "len = 3")
    assert check(f"{KEPT}{filled}") == ()
    assert check(KEPT.replace("mask", "@partial mask")) == ()


def test_a_sample_of_other_masks_does_not_hide_those_behind_it():
    (found,) = check(f"{KEPT}sample other(len = 4)\nsample own(evict = [1, 1])\n")
    assert found.code == "E121"


def test_a_mask_that_takes_too_long_to_test_is_a_warning(monkeypatch):
    monkeypatch.setattr("dcp_dsl.claims.testing.MAX_STEPS", 2**16)
    (found,) = check(f"{KEPT}sample s(evict = [4, 4, 4])")
    assert found.code == "W293"
    assert found.message.endswith("is not tested: it takes too long")


def test_a_layout_of_very_many_parts_takes_too_long_to_test():
    parts = " ".join(f"p{i}[n{i}]" for i in range(200))
    assert "W293" in [d.code for d in check(f"segment s = {parts}\nmask a = causal and same(s)")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (KEPT, "W293"),
        ("token evict\ncheck causal and q < k.evict total\n", "W291"),
        ("check causal and q // (len - len) < 1 equals causal\n", "W290"),
    ],
)
def test_strict_makes_an_error_of_what_is_not_decided(tmp_path, text, code):
    assert run(tmp_path, text).exit_code == 0
    result = run(tmp_path, text, "--strict", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert [(f["code"], f["severity"]) for f in document["findings"]] == [(code, "error")]
    assert (document["errors"], document["warnings"]) == (1, 0)


def test_strict_leaves_other_warnings_alone(tmp_path):
    assert run(tmp_path, "mask a = causal and q - k <= 4k\n", "--strict").exit_code == 0


# ---- Python --------------------------------------------------------------------------------------


def test_loading_and_guarding_test_nothing_and_still_decide_every_row(tmp_path, monkeypatch):
    path = tmp_path / "a.dcpm"
    path.write_text(LEAK)
    monkeypatch.setattr("dcp_dsl.claims.lints.claim.search_fault", None)
    monkeypatch.setattr("dcp_dsl.claims.testing.dense_mask", None)
    guard = Guard.of([load(path).mask("a")])
    assert (guard.is_causal_proved, guard.is_total_proved) == (False, True)
    guard.check(Sample({"is_image": [1, 0]}, 2))
    with pytest.raises(DatasetError, match="token 0 sees the later token 1"):
        guard.check(Sample({"is_image": [1, 1]}, 2))


# ---- names of the library ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("segment document = text[lens]*\nmask a = causal and same(document)", {"lens"}),
        ("mask a = causal and same(document) where document = every 4", set()),
        ("mask a(tree: tokens = 3) = causal and q - k < tree", set()),
    ],
    ids=["segment", "tiles", "parameter"],
)
def test_a_name_that_hides_a_mask_of_the_library_reads_none_of_its_columns(text, columns):
    assert check(text) == ()
    assert Spec.from_text(text).mask("a").columns == columns


def test_a_segment_that_hides_a_mask_of_the_library_cannot_be_called():
    (found, *_) = check("segment document = text[lens]*\nmask a = causal and document()")
    assert (found.code, "is a segment" in found.message) == ("E103", True)


def test_a_layout_named_like_a_mask_of_the_library_means_its_own_parts():
    spec = Spec.from_text("segment document = text[lens]*\nmask a = causal and same(document)")
    bound = spec.mask("a").bind(Sample({"lens": [2, 3]}, 5))
    assert bound.num_pairs == 3 + 6


@pytest.mark.parametrize("size", [3, 16, 64, 256, 2048])
@pytest.mark.parametrize(
    "text",
    [
        "segment b = every 64  column c[{}] in b  mask m = causal and k // 64 in q.b.c",
        "token c[{}]  mask m = causal and k // 64 in q.c",
        "token c[{}]  mask m = causal and q in k.c",
    ],
)
def test_an_empty_list_shows_a_row_without_keys_at_every_size(text, size, monkeypatch):
    """The work of a search does not grow with the size of lists, of which few numbers are drawn."""
    read = []
    compare = Interval.compare
    monkeypatch.setattr(
        Interval, "compare", lambda self, *args: read.append(0) or compare(self, *args)
    )
    found = [d for d in check(text.format(size)) if d.code == "W293"]
    assert len(found) == 1, "a list of -1 sees nothing"
    assert len(found[0].hint) < 3_000
    assert len(read) < 20_000


@pytest.mark.parametrize(
    "text",
    [
        "segment doc = branch p[n]  @partial mask a = {0} and same(p)"
        "  @partial mask b = {1} and same(p)",
        "segment doc = [d]*  mask a = {0} per doc  mask b = {1} per doc",
        "segment doc = (x[n] y[m])*  mask a = {0}  mask b = {1}",
        "mask a = {0}  mask b = {1}",
    ],
)
@pytest.mark.parametrize("numbers", [(2, 3), (1, 30), (3, 80)])
def test_samples_are_as_long_as_the_numbers_of_a_mask(text, numbers):
    """`streaming(2, 3)` first hides a pair at six tokens."""
    masks = text.format(f"streaming{numbers}", "causal")
    assert "C402" in [d.code for d in check(masks + "  check b equals a")]
