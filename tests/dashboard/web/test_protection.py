import json
import re

import pytest

from dcp_dashboard import create_app
from dcp_dashboard.web.protection import COOKIE, protect
from dcp_dashboard.web.server import LOOPBACK

LOCAL = "http://127.0.0.1:8050"


@pytest.fixture(scope="module")
def application(served_folder):
    app = create_app(served_folder)
    protect(app, LOOPBACK, None)
    return app.server


@pytest.fixture(scope="module")
def guarded_application(served_folder):
    app = create_app(served_folder)
    protect(app, None, "s3cret")
    return app.server


@pytest.fixture
def client(application):
    return application.test_client()


@pytest.fixture
def guarded(guarded_application):
    return guarded_application.test_client()


@pytest.mark.parametrize("host", ["127.0.0.1:8050", "localhost:8050", "localhost", "[::1]:8050"])
def test_our_own_names_are_served(client, host):
    assert client.get("/", base_url=f"http://{host}").status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil", "evil:8050", "127.0.0.1.evil.example", "localhost.evil", "127.0.0.1@evil", "[", ""],
)
@pytest.mark.parametrize("path", ["/", "/_dash-layout", "/api/plan/0123456789abcdef/mask"])
def test_another_host_name_is_refused(client, host, path):
    assert client.get(path, environ_overrides={"HTTP_HOST": host}).status_code == 400


def test_a_request_from_another_site_is_refused(client):
    def post(origin):
        return client.post(
            "/_dash-update-component", base_url=LOCAL, json={}, headers={"Origin": origin}
        ).status_code

    assert post("http://evil.example") == 403
    assert post("null") == 403
    assert post("http://[") == 403
    assert post(LOCAL) != 403


def test_a_large_body_is_refused(client):
    body = b'"' + b"x" * 2_000_000 + b'"'
    answer = client.post(
        "/_dash-update-component", base_url=LOCAL, data=body, content_type="application/json"
    )
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/", "/api/plan/0123456789abcdef/mask", "/assets/style.css"])
def test_every_answer_carries_the_headers(client, path):
    with client.get(path, base_url=LOCAL) as answer:
        headers = answer.headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in policy["script-src"]
    assert "http" not in headers["Content-Security-Policy"]


def test_the_headers_are_these(client, guarded, snapshots):
    asked = {
        "page": client.get("/", base_url=LOCAL),
        "refused": client.get("/", base_url="http://evil.example"),
        "asked for the token": guarded.get("/"),
        "token given": guarded.get("/compare?b=2&token=s3cret&a=1"),
        "no other parts": guarded.get("/?token=s3cret"),
    }
    names = ("Content-Security-Policy", "Cross-Origin-Opener-Policy", "Location", "Set-Cookie",
             "Cross-Origin-Resource-Policy", "X-Frame-Options", "Content-Type")  # fmt: skip
    texts = {
        title: "\n".join(
            [str(answer.status_code), *(f"{n}: {answer.headers.get(n)}" for n in names)]
        )
        for title, answer in asked.items()
    }
    hashed = {t: re.sub("'sha256-[^']+'", "'sha256-…'", text) for t, text in texts.items()}
    snapshots.check("headers", hashed)


def every_route(client):
    """Each route of the application with its first method, its parts filled in."""
    for rule in client.application.url_map.iter_rules():
        path = re.sub(r"<int:\w+>", "0", rule.rule)
        method = "POST" if "POST" in rule.methods else "GET"
        yield method, re.sub(r"<[^>]+>", "0123456789abcdef", path)


def test_every_route_asks_for_our_name_our_pages_and_wears_the_headers(client):
    for method, path in every_route(client):
        for status, host, origin in (
            (400, "evil.example", None),
            (400, "127.0.0.1.evil.example:8050", None),
            (403, "127.0.0.1:8050", "http://evil.example"),
            (403, "127.0.0.1:8050", "null"),
            (403, "127.0.0.1:8050", "http://127.0.0.1:8051"),
        ):
            headers = {"Origin": origin} if origin else {}
            with client.open(
                path, method=method, base_url=f"http://{host}", headers=headers
            ) as answer:
                assert answer.status_code == status, path
                assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_route_asks_for_the_token(guarded):
    for method, path in every_route(guarded):
        with guarded.open(path, method=method) as answer:
            assert answer.status_code == 401, path
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]


def test_errors_of_every_kind_wear_the_headers(client):
    answers = [
        client.get("/api/plan/0123456789abcdef/mask", base_url=LOCAL),
        client.put("/api/edit/check", base_url=LOCAL),
        client.post("/api/edit/check", base_url=LOCAL, json={"text": "x" * 2_000_000}),
        client.post("/api/uploads", base_url=LOCAL),
        client.post("/api/edit/check", base_url=LOCAL, data="x"),
        client.get("/static/x", base_url=LOCAL),
    ]
    assert [answer.status_code for answer in answers] == [404, 405, 413, 400, 415, 404]
    for answer in answers:
        assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("path", ["/", "/api/plan/0123456789abcdef/mask", "/assets/style.css"])
def test_without_the_token_nothing_is_served(guarded, path):
    assert guarded.get(path).status_code == 401
    assert guarded.get(path, query_string={"token": "wrong"}).status_code == 401
    guarded.set_cookie(COOKIE, "wröng")
    assert guarded.get(path).status_code == 401


def test_the_token_is_asked_for_once_and_leaves_the_url(guarded):
    first = guarded.get("/", query_string={"sort": "tokens", "token": "s3cret"})
    assert (first.status_code, first.headers["Location"]) == (303, "/?sort=tokens")
    assert "HttpOnly" in first.headers["Set-Cookie"]
    assert "SameSite=Strict" in first.headers["Set-Cookie"]
    assert guarded.get("/").status_code == 200


def test_the_debugger_and_other_doors_are_shut(client):
    for path in (
        "/_mcp",
        "/_reload-hash",
        "/console",
        "/assets/../app.py",
        "/assets/%2e%2e/app.py",
    ):
        answer = client.get(path, base_url=LOCAL)
        assert b"create_app" not in answer.data
        assert answer.status_code in (200, 404)  # unknown paths are Dash's shell, which has no data


PAGE = {
    "output": "page.children",
    "outputs": {"id": "page", "property": "children"},
    "inputs": [
        {"id": "url", "property": "pathname", "value": "/"},
        {"id": "url", "property": "search", "value": ""},
    ],
    "changedPropIds": ["url.pathname"],
}


def call(client, body):
    data = body if isinstance(body, bytes) else json.dumps(body)
    return client.post(
        "/_dash-update-component", base_url=LOCAL, data=data, content_type="application/json"
    )


def test_the_call_of_our_page_is_answered(client):
    assert call(client, PAGE).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[" * 100_000, None, [], {}, "a",
        PAGE | {"output": "x.y"}, PAGE | {"output": ["page.children"]},
        PAGE | {"output": "timelines.data-show"}, PAGE | {"outputs": {"id": "page"}},
        PAGE | {"outputs": []}, PAGE | {"outputs": 3}, PAGE | {"inputs": []}, PAGE | {"inputs": 3},
        PAGE | {"inputs": PAGE["inputs"][::-1]}, PAGE | {"inputs": [None, 3]},
        PAGE | {"changedPropIds": 3}, PAGE | {"changedPropIds": [[]]}, PAGE | {"state": [3]},
    ],
)  # fmt: skip
def test_a_call_that_no_page_makes_is_a_bad_request(client, body):
    assert call(client, body).status_code == 400


@pytest.mark.parametrize("value", [None, 3, [], {"a": 1}, "/plan/x", "\ud800"])
def test_any_value_of_an_input_is_a_page(client, value):
    inputs = [part | {"value": value} for part in PAGE["inputs"]]
    assert call(client, PAGE | {"inputs": inputs}).status_code == 200


def test_a_script_that_is_not_there_is_not_found(client):
    assert client.get("/_dash-component-suites/dash/../x", base_url=LOCAL).status_code == 404
