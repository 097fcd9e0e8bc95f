"""The routes of the editor as an attacker meets them; the work behind them is tested elsewhere."""

import pytest

from dcp_dashboard import create_app
from dcp_dashboard.web.protection import protect
from dcp_dashboard.web.server import LOOPBACK

LOCAL = "http://127.0.0.1:8050"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    app = create_app(tmp_path_factory.mktemp("empty"))
    protect(app, LOOPBACK, None)
    return app.server.test_client()


@pytest.mark.parametrize(
    "path", ["check", "hover", "complete", "format", "picture", "preview", "plan"]
)
def test_only_our_own_pages_may_ask_and_only_for_what_they_send(client, path):
    url = f"/api/edit/{path}"
    foreign = {"Origin": "http://evil.example"}
    assert client.post(url, base_url=LOCAL, json={"text": ""}, headers=foreign).status_code == 403
    for body in ("[]", "7", "{", "[" * 100_000, "\xff"):
        answer = client.post(url, base_url=LOCAL, data=body, content_type="application/json")
        assert answer.status_code == 400
        assert answer.json["error"]
    large = client.post(url, base_url=LOCAL, json={"text": "x" * 2_000_000})
    assert large.status_code == 413
    # A form of another site can be sent without a question to the server, JSON cannot.
    assert client.post(url, base_url=LOCAL, data={"text": "a"}).status_code == 415


def test_a_job_that_nobody_started_is_a_message(client):
    for method, url in ((client.get, "/api/edit/plan/0"), (client.post, "/api/edit/plan/0/cancel")):
        answer = method(url, base_url=LOCAL)
        assert "start it again" in answer.json["error"]


def test_settings_that_cannot_be_are_refused_before_any_process_starts(client):
    answer = client.post("/api/edit/plan", base_url=LOCAL, json={"text": "", "limit_s": 10**9})
    assert "limit_s: expected a whole number 1 to 600" in answer.json["error"]
