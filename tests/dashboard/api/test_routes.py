import pytest

from dcp_dashboard.api.encoding import decode
from dcp_dashboard.library.folder import plan_key

SMALL = plan_key("small.dcpplan")


def test_timelines_come_by_source(client):
    for source in ("simulated", "measured"):
        answer = client.get(f"/api/plan/{SMALL}/timeline?source={source}")
        assert answer.status_code == 200
        assert decode(answer.data)[0]["source"] == source


def test_a_source_that_the_file_lacks_is_named(client):
    key = plan_key("deep/large.dcpplan")
    answer = client.get(f"/api/plan/{key}/timeline?source=measured")
    assert answer.status_code == 404
    assert answer.json == {"error": "deep/large.dcpplan has no trace 'measured'; it has simulated"}


def test_an_unchanged_payload_is_not_sent_twice(client):
    first = client.get(f"/api/plan/{SMALL}/mask")
    again = client.get(f"/api/plan/{SMALL}/mask", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    other = client.get(
        f"/api/plan/{SMALL}/timeline", headers={"If-None-Match": first.headers["ETag"]}
    )
    assert other.status_code == 200


def test_a_broken_file_is_a_message(client):
    answer = client.get(f"/api/plan/{plan_key('cut.dcpplan')}/mask")
    assert answer.status_code == 404
    assert "cut.dcpplan" in answer.json["error"]


@pytest.mark.parametrize(
    "key", ["..", "small.dcpplan", "%2e%2e%2fsmall.dcpplan", "%00", "0" * 16, "x" * 5000]
)
def test_a_key_that_names_no_file_gives_no_data(client, key):
    answer = client.get(f"/api/plan/{key}/mask")
    assert answer.data[:4] != b"DCPC"
    assert b"Traceback" not in answer.data


def test_the_picture_is_a_png(client):
    answer = client.get(f"/api/plan/{SMALL}/thumbnail.png")
    assert answer.content_type == "image/png"
    assert answer.data.startswith(b"\x89PNG\r\n\x1a\n")
