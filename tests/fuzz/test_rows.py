"""The first rows of the campaign: the checker of data sets and the loader agree."""

import row_fuzz

from dcp_dsl.claims.guard import Guard


def test_checker_and_loader_agree_on_the_first_rows():
    found = row_fuzz.campaign(0, 800)
    assert found["disagreements"] == 0
    assert found["refused"] > 200
    assert found["cases"] - found["refused"] > 200


def test_a_checker_that_proves_nothing_is_found_out(monkeypatch, capsys):
    monkeypatch.setattr(row_fuzz.Attachment, "guard", lambda self: Guard.of([]))
    assert row_fuzz.campaign(0, 800)["disagreements"] > 20
    assert ": '', alone 'segment" in capsys.readouterr().err
