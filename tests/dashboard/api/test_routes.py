import pytest

from dcp_dashboard.library.folder import plan_key

SMALL = plan_key("small.dcpplan")


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
