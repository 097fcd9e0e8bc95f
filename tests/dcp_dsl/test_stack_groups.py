"""Groups of layers in stacks, and the documents of linear layers."""

import pytest

from dcp_dsl import DatasetError, DCPError, Sample, Spec, check, check_report

DOCS = "segment doc = [lens]*  "


def test_groups_nest_and_are_written_out_in_their_order():
    text = "stack s = causal, 2 of (3 of local(4), 2 of (linear, full)), causal"
    stack = Spec.from_text(text).stack("s")
    assert [mask.call for mask in stack.masks] == ["causal", "local(window = 4)", "full"]
    one = [1, 1, 1, -1, 2, -1, 2]
    assert list(stack.cycle()) == [0, *one, *one, 0]
    assert stack.period == 16
    assert stack.layers_of(stack.masks[0], 32) == (0, 15, 16, 31)


@pytest.mark.parametrize(
    "layers",
    ["0 of (causal, full)", "2000 of (causal, full)", "40 of (40 of (causal, full), full)"],
)
def test_a_group_that_makes_no_layer_or_too_many_is_refused(layers):
    assert [found.code for found in check(f"stack s = {layers}")] == ["E111"]


def test_a_fault_in_a_group_is_told_once():
    assert [found.code for found in check("stack s = 3 of (casual, full), full")] == ["E101"]


@pytest.mark.parametrize(
    ("layers", "leaks"),
    [
        ("3 of linear, causal", []),
        ("3 of linear per doc, causal per doc", []),
        ("3 of linear, causal per doc", ["linear"]),
        ("3 of linear per doc, causal", ["causal"]),
        ("2 of (linear, linear per doc), causal per doc", ["linear"]),
    ],
)
def test_what_crosses_documents_is_named(layers, leaks):
    found = [d for d in check(f"{DOCS} stack s = {layers}") if d.code == "W211"]
    assert [d.message.split("`")[1] for d in found] == leaks


def test_the_remedy_for_a_linear_layer_mends_it():
    text = f"{DOCS} stack s = 3 of linear, causal per doc"
    (found,) = [d for d in check(text) if d.code == "W211"]
    assert found.hint.startswith("write `linear per doc` and give the layer `stack.cu_seqlens(")
    mended = text.replace("of linear", "of linear per doc")
    assert {v.outcome for v in check_report(mended).verdicts} == {"proved"}
    borders = Spec.from_text(mended).stack("s").cu_seqlens(0, Sample({"lens": [2, 0, 3]}, 5))
    assert (borders.dtype, borders.tolist()) == ("int32", [0, 2, 5])


def test_a_linear_layer_over_branches_is_warned_of_without_a_false_remedy():
    text = "segment part = question[n] branch answer[lens]*  stack s = linear, paths"
    (found,) = [d for d in check(text) if d.code == "W211"]
    assert "cannot fork" in found.hint


def test_tokens_between_documents_are_sequences_of_their_own():
    text = "segment doc = spans(docs)  stack s = linear per doc, causal, linear"
    stack = Spec.from_text(text).stack("s")
    assert stack.columns == {"docs"}
    sample = Sample({"docs": [[4, 6], [1, 3]]}, 8)
    assert stack.cu_seqlens(0, sample).tolist() == [0, 1, 3, 4, 6, 8]
    assert stack.cu_seqlens(2, sample).tolist() == [0, 8]
    with pytest.raises(DCPError, match="layer 1 has a mask"):
        stack.cu_seqlens(1, sample)
    with pytest.raises(DatasetError, match="expected 0 <= start <= end <= 8"):
        stack.cu_seqlens(0, Sample({"docs": [[0, 9]]}, 8))


def test_documents_of_a_linear_layer_must_be_a_segment():
    assert "E101" in {d.code for d in check("stack s = linear per dok, causal")}
