"""Requests that are refused, headers, and scripts: as they were at the start, and harmless."""

import json
import os
import re
from pathlib import Path

import pytest
from flask import Flask

from dcp_dashboard import create_app
from dcp_dashboard.pages.layout import markup
from dcp_dashboard.web.app import ASSETS, Installation
from dcp_dashboard.web.protection import COOKIE, protect
from dcp_dashboard.web.server import LOOPBACK
from dcp_grammar import WORDS, patterns

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


OURS = ("127.0.0.1:8050", "localhost:8050", "localhost", "[::1]:8050")
OTHERS = ("evil", "127.0.0.1.evil.example", "localhost.evil:8050", "127.0.0.1@evil", "[", "")


@pytest.mark.parametrize("host", [*OURS, *OTHERS])
def test_only_our_own_names_are_served(client, host):
    answer = client.get("/", environ_overrides={"HTTP_HOST": host})
    assert answer.status_code == (200 if host in OURS else 400)


def test_a_request_from_another_site_is_refused(client):
    for origin, status in (("http://[", 403), (LOCAL, 200)):  # others with every route, below
        assert call(client, PAGE, Origin=origin).status_code == status


def test_a_large_body_is_refused(client):
    assert call(client, b'"' + b"x" * 2_000_000 + b'"').status_code == 413


def test_the_headers_are_these(client, guarded, snapshots):
    asked = {
        "page": client.get("/", base_url=LOCAL),
        "asset": client.get("/assets/style.css", base_url=LOCAL),
        "nothing": client.get("/api/plan/0123456789abcdef/mask", base_url=LOCAL),
        "refused": client.get("/", base_url="http://evil.example"),
        "asked for the token": guarded.get("/"),
        "token given": guarded.get("/compare?b=2&token=s3cret&a=1"),
        "no other parts": guarded.get("/?token=s3cret"),
    }
    names = ("Content-Security-Policy", "Cross-Origin-Opener-Policy", "Location", "Set-Cookie",
             "Cross-Origin-Resource-Policy", "X-Frame-Options", "Content-Type",
             "X-Content-Type-Options", "Referrer-Policy")  # fmt: skip
    texts = {
        title: "\n".join(
            [str(answer.status_code), *(f"{n}: {answer.headers.get(n)}" for n in names)]
        )
        for title, answer in asked.items()
    }
    policy = asked["page"].headers["Content-Security-Policy"]
    assert "unsafe" not in policy.partition("script-src")[2].partition(";")[0]
    assert "http" not in policy
    hashed = {t: re.sub("'sha256-[^']+'", "'sha256-…'", text) for t, text in texts.items()}
    snapshots.check("headers", hashed)


def every_route(client):
    """Each route of the application with its first method, its parts filled in."""
    for rule in client.application.url_map.iter_rules():
        path = re.sub(r"<int:\w+>", "0", rule.rule)
        method = "POST" if "POST" in rule.methods else "GET"
        yield method, re.sub(r"<[^>]+>", "0123456789abcdef", path)


def test_every_route_asks_for_our_name_our_pages_and_wears_the_headers(client):
    others = ("http://evil.example", "null", "http://127.0.0.1:8051")
    asked = [(403, LOCAL, {"Origin": origin}) for origin in others]
    asked += [(400, f"http://{host}", {}) for host in ("evil", "127.0.0.1.evil.example:8050")]
    for method, path in every_route(client):
        for status, base, headers in asked:
            with client.open(path, method=method, base_url=base, headers=headers) as answer:
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


def test_a_wrong_token_is_refused_and_the_right_one_is_asked_for_once(guarded):
    assert guarded.get("/", query_string={"token": "wrong"}).status_code == 401
    guarded.set_cookie(COOKIE, "wröng")
    assert guarded.get("/").status_code == 401
    assert guarded.get("/", query_string={"sort": "tokens", "token": "s3cret"}).status_code == 303
    assert guarded.get("/").status_code == 200


def test_the_debugger_and_other_doors_are_shut(client):
    doors = ("/_mcp", "/_reload-hash", "/console", "/assets/../app.py", "/assets/%2e%2e/app.py")
    for path in doors:
        answer = client.get(path, base_url=LOCAL)
        assert b"create_app" not in answer.data
        assert answer.status_code in (200, 404)  # unknown paths are Dash's shell, which has no data


PAGE = {
    "output": "page.children", "outputs": {"id": "page", "property": "children"},
    "inputs": [{"id": "url", "property": "pathname", "value": "/"},
               {"id": "url", "property": "search", "value": ""}],
    "changedPropIds": ["url.pathname"],
}  # fmt: skip


def call(client, body, **headers):
    data, kind = body if isinstance(body, bytes) else json.dumps(body), "application/json"
    path = "/_dash-update-component"
    return client.post(path, base_url=LOCAL, data=data, content_type=kind, headers=headers)


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


BUNDLE = "/assets/dashboard.bundle.js"


def test_an_update_changes_no_script_of_a_server_that_runs_and_is_told(tmp_path):
    assets = tmp_path / "assets"
    assets.mkdir()
    script = assets / "a.js"
    script.write_text("old")
    installation, server = Installation([tmp_path], assets), Flask(__name__)
    server.add_url_rule("/assets/<filename>", "_dash_assets.static", lambda filename: "disk")
    installation.serve_assets(server)
    assert installation.told("the page") == "the page"
    script.write_text("new")
    answer = server.test_client().get("/assets/a.js")
    assert (answer.text, answer.mimetype) == ("old", "text/javascript")
    assert server.test_client().get("/assets/b.js").status_code == 404
    assert "was updated while this server runs" in markup(installation.told("the page"))
    script.write_text("old")
    os.utime(script, ns=(0, installation._known[script][1]))
    assert not installation.is_outdated
    (tmp_path / "b.py").touch()
    assert installation.is_outdated


def test_a_folder_that_goes_while_it_is_read_is_an_update(tmp_path, monkeypatch):
    (tmp_path / "going").mkdir()
    (tmp_path / "going" / "a.py").touch()
    installation, scandir = Installation([tmp_path]), os.scandir

    def gone(path):
        if str(path).endswith("going"):  # some are numbers: temporary folders that end now
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", gone)
    assert installation.is_outdated


def test_the_application_sends_its_scripts_as_they_were_at_the_start(served_folder):
    client = create_app(served_folder).server.test_client()
    assert client.get(BUNDLE).data == (ASSETS / "dashboard.bundle.js").read_bytes()
    again = client.get(BUNDLE, headers={"If-None-Match": client.get(BUNDLE).headers["ETag"]})
    assert again.status_code == 304
    assert not Installation().is_outdated


ROOT = Path(__file__).parents[3]
WEB = ROOT / "dashboard" / "web"


def test_every_package_is_locked_and_its_licence_comes_along():
    lock = json.loads((WEB / "package-lock.json").read_text(encoding="utf-8"))
    wanted = json.loads((WEB / "package.json").read_text(encoding="utf-8"))["dependencies"]
    licences = (ASSETS / "codemirror.licences.txt").read_text(encoding="utf-8")
    for name, version in wanted.items():
        assert lock["packages"][f"node_modules/{name}"]["version"] == version
        assert f"{name} {version} (MIT)" in licences
    assert all("integrity" in p for name, p in lock["packages"].items() if name)


@pytest.mark.parametrize(
    ("name", "further"),
    [("codemirror.bundle.js", ["fetch("]), ("dashboard.bundle.js", ["https://", "innerHTML"])],
)
def test_no_script_evaluates_text_or_asks_anybody_else(name, further):
    bundle = (ASSETS / name).read_text(encoding="utf-8")
    for forbidden in (
        "eval(", "new Function", "XMLHttpRequest", "WebSocket", "localStorage", *further
    ):  # fmt: skip
        assert forbidden not in bundle


def test_every_kind_of_token_has_a_colour_in_the_editor():
    source = (WEB / "editor" / "language.ts").read_text(encoding="utf-8")
    table = source[source.index("const TAGS") : source.index("};")]
    coloured = {name.replace("_", ".") for name in re.findall(r"^  (\w+): tags", table, re.M)}
    kinds = {kind for pattern in patterns() for kind in pattern.pygments}
    assert kinds - {"Text.Whitespace"} == coloured
    assert {word.role for word in WORDS} <= {
        "statement", "clause", "operator", "constant", "variable", "function", "type", "source",
        "decorator",
    }  # fmt: skip
