"""Texts and messages as targets of the fuzzer: specs, requests to the dashboard, LSP messages.

The corpus holds one input for each thing that has been seen to happen: a finding's code, a route
with a status, a method with its kind of answer. New cases are made from the corpus and from what a
person would send; `file_fuzz.py --grow` adds what is new.
"""

import hashlib
import json
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dcp_dsl import Spec
from dcp_planner import Cluster, ModelShape, PlanConfig, build_plan, write_plan
from dcp_planner.batches.batch import batch_of_samples

sys.path.append(str(Path(__file__).parents[1] / "dcp_dsl"))
from editor_client import Editor
from fuzz_texts import SPECS, assert_ends_well, mutated, soup

from dcp_dsl import Sample

CORPUS = Path(__file__).with_name("corpus")
MAX_KEPT_BYTES = 2000
ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 7, 2**31, -(2**31), 2**63, 2**64, 1e308, "", "x", "..", "\0", "\ud800",
    "é" * 99, "0" * 5000, [], {}, [[]], {"a": None}, ["x"] * 50, "4k", "causal", "mask m = causal",
)  # fmt: skip
Read = Callable[[Path], tuple[str, ...]]
Draw = Callable[[random.Random], tuple[str, bytes, Read]]


def corpus(kind: str) -> list[Any]:  # Any: texts of specs, JSON of messages
    """Return the inputs that were kept, in a fixed order."""
    return [*read_corpus(kind).values()]


def read_corpus(kind: str) -> dict[str, Any]:
    """Return the inputs of a kind by the digest of what each was the first to make happen."""
    return json.loads((CORPUS / f"{kind}.json").read_text(encoding="utf-8"))


def keep_new(kind: str, data: bytes, seen: tuple[str, ...]) -> None:
    """Add an input to the corpus for each thing that it is the first to make happen."""
    kept = read_corpus(kind)
    new = {hashlib.sha256(thing.encode()).hexdigest()[:12] for thing in seen} - kept.keys()
    if not new or len(data) >= MAX_KEPT_BYTES:
        return
    value = data.decode(errors="replace") if kind == "specs" else json.loads(data)
    kept |= dict.fromkeys(new, value)
    lines = [f"{json.dumps(digest)}: {json.dumps(kept[digest])}" for digest in sorted(kept)]
    text = "{\n" + ",\n".join(lines) + "\n}\n"
    (CORPUS / f"{kind}.json").write_text(text, encoding="utf-8")


def spec_cases() -> Draw:
    """Texts of masks: words changed, soups of words, bytes."""
    texts = SPECS + corpus("specs")

    def read(path: Path) -> tuple[str, ...]:
        found = assert_ends_well(path.read_bytes().decode(errors="replace"))
        return tuple({finding.code for finding in found}) or ("sound",)

    def draw(rng: random.Random) -> tuple[str, bytes, Read]:
        text = soup(rng) if rng.random() < 0.2 else mutated(rng, texts)
        return "a.dcpm", text.encode(errors="replace"), read

    return draw


def odd_json(value: Any, rng: random.Random) -> Any:
    """Replace, drop or double one place of a JSON value; strings are changed inside, too."""
    places: list[tuple[Any, Any]] = []

    def walk(inner: Any) -> None:
        items = inner.items() if isinstance(inner, dict) else enumerate(inner)
        for key, below in items:
            places.append((inner, key))
            if isinstance(below, dict | list):
                walk(below)

    value = json.loads(json.dumps(value))
    walk(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(places)
        if isinstance(holder, list) and key >= len(holder):
            continue
        match rng.randrange(4):
            case 0 if isinstance(holder, dict):
                holder.pop(key, None)
            case 1 if isinstance(holder, list):
                holder.append(holder[key])
            case 2 if isinstance(holder, dict) and isinstance(holder.get(key), str):
                text = holder[key]
                at = rng.randrange(len(text) + 1)
                holder[key] = (
                    text[:at] + rng.choice(("\0", "%", "é", "\n", "..", "")) + text[at + 1 :]
                )
            case _:
                holder[key] = rng.choice(ODD)
    return value


KEYS = ("a.dcpplan", "s.dcpm", "none")
GETS = (
    "/", "/plan/{}", "/edit", "/compare", "/api/plan/{}/mask", "/api/plan/{}/pairs",
    "/api/compare/{}/{}/moves", "/api/plan/{}/devices", "/api/plan/{}/timeline",
    "/api/plan/{}/tile/1", "/api/plan/{}/transfer/0", "/api/plan/{}/device/0",
    "/api/plan/{}/device/0/1", "/api/plan/{}/division/forward/0", "/api/plan/{}/event/simulated/0",
    "/api/changes?keys={}", "/api/edit/figures/{}", "/api/edit/plan/{}",
    "/api/plan/{}/overview.png",
    "/api/plan/{}/mask.svg", "/api/plan/{}/overview.html", "/api/plan/{}/events.csv",
    "/api/plan/{}/trace.pftrace", "/api/plan/{}/thumbnail.png", "/api/plan/{}/file",
    "/api/plan/{}/pairs?query=0&key=0&group=0", "/assets/style.css", "/_dash-layout",
)  # fmt: skip
TASKS = ("check", "picture", "hover", "complete", "format", "svg", "preview", "plan")


def http_templates() -> list[dict[str, Any]]:
    """Return requests that pages send."""
    from dcp_dashboard.library.folder import plan_key

    key = plan_key(KEYS[0])
    found = [{"method": "GET", "path": path.replace("{}", key), "body": None} for path in GETS]
    text = {"text": "mask m = causal", "mask": "m", "sample": "64", "line": 1, "column": 7}
    asked = {**text, "offset": 9, "nodes": 1, "devices_per_node": 2, "block": 16, "limit_s": 5}
    found += [{"method": "POST", "path": f"/api/edit/{task}", "body": asked} for task in TASKS]
    shown = {
        "output": "page.children", "outputs": {"id": "page", "property": "children"},
        "inputs": [
            {"id": "url", "property": "pathname", "value": f"/plan/{key}"},
            {"id": "url", "property": "search", "value": "?view=mask"},
        ],
        "changedPropIds": ["url.pathname"],
    }  # fmt: skip
    found += [{"method": "POST", "path": "/_dash-update-component", "body": shown}]
    found += [{"method": "POST", "path": "/api/uploads?name=x&size=9", "body": None}]
    found += [{"method": "POST", "path": "/api/edit/plan/x/cancel", "body": None}]
    return found


@cache
def http_client(_: int) -> Any:
    """Return a client of the application over a folder with a plan; one for each process."""
    from dcp_dashboard import create_app
    from dcp_dashboard.web.protection import protect
    from dcp_dashboard.web.server import LOOPBACK

    folder = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_DIR")))
    spec = Spec.from_text("mask m = causal")
    (batch,) = batch_of_samples(spec, spec.mask("m"), [Sample({}, 64)], 16)
    config = PlanConfig(partitioner="static:zigzag")
    plan = build_plan(batch.sparsity, ModelShape(), Cluster(1, 2), config)
    write_plan(folder / KEYS[0], plan)
    (folder / KEYS[1]).write_text("mask m = causal\n")
    app = create_app(folder)
    protect(app, LOOPBACK, None)
    app.server.config["PROPAGATE_EXCEPTIONS"] = True  # what is an error 500 raises here
    return app.server.test_client()


def route(path: str) -> str:
    """Return a path without its query and the keys in it."""
    return re.sub(r"/[0-9a-f]{16}|\?.*", "", path, flags=re.DOTALL)


def http_cases() -> Draw:
    """Requests to the dashboard: paths, queries and bodies."""
    templates = http_templates() + corpus("http")
    routes = {route(template["path"]) for template in http_templates()}

    def read(path: Path) -> tuple[str, ...]:
        request = json.loads(path.read_bytes())
        where, method = str(request.get("path")), str(request.get("method"))
        body, kind = request.get("body"), str(request.get("type", "application/json"))
        data = body if isinstance(body, str) else json.dumps(body)
        answer = http_client(os.getpid()).open(
            "/" + where.encode(errors="replace").decode().removeprefix("/"),
            method="POST" if "P" in method else "GET",
            data=data.encode(errors="replace"),
            content_type=kind[:99].encode("ascii", "replace").decode(),
            base_url="http://localhost",
        )
        _ = answer.data
        assert answer.status_code < 500 or answer.status_code == 503, answer.status
        known = route(where) if route(where) in routes else "other"
        return (f"{known} {answer.status_code}",)

    def draw(rng: random.Random) -> tuple[str, bytes, Read]:
        request = odd_json(rng.choice(templates), rng)
        if not isinstance(request, dict):
            request = {}
        return "a.json", json.dumps(request).encode(), read

    return draw


TEXT = "segment part = question[n] answer[m]*\nmask a(w: tokens = 4) = causal and q - k < w\n"
URI = "file:///nowhere/a.dcpm"
PROBE = "file:///nowhere/probe.dcpm"


def lsp_templates() -> list[dict[str, Any]]:
    """Return messages that editors send."""
    document = {"uri": URI}
    place = {"textDocument": document, "position": {"line": 1, "character": 9}}
    area = {"start": {"line": 0, "character": 0}, "end": {"line": 1, "character": 5}}
    asked = {
        "didOpen": {"textDocument": {**document, "languageId": "dcpm", "version": 1, "text": TEXT}},
        "didChange": {
            "textDocument": {**document, "version": 2},
            "contentChanges": [{"range": area, "text": "mask"}],
        },
        "didClose": {"textDocument": document}, "hover": place, "definition": place,
        "completion": place, "signatureHelp": place, "prepareRename": place,
        "documentSymbol": {"textDocument": document},
        "references": {**place, "context": {"includeDeclaration": True}},
        "rename": {**place, "newName": "b"},
        "semanticTokens/full": {"textDocument": document},
        "formatting": {"textDocument": document, "options": {"tabSize": 2, "insertSpaces": True}},
        "codeAction": {"textDocument": document, "range": area, "context": {"diagnostics": []}},
    }  # fmt: skip
    return [{"method": f"textDocument/{name}", "params": params} for name, params in asked.items()]


@cache
def lsp_editor(_: int) -> Editor:
    """Return an editor with a server of its own; one for each process."""
    editor = Editor(Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_DIR"))))
    editor.open(PROBE, TEXT)
    return editor


def lsp_cases() -> Draw:
    """Messages to the language server, after each of which it answers a question as before."""
    templates = lsp_templates() + corpus("lsp")

    def read(path: Path) -> tuple[str, ...]:
        editor = lsp_editor(os.getpid())
        message = json.loads(path.read_bytes())
        editor.number += 1
        number = editor.number
        method = message.get("method")
        is_told = not isinstance(method, str) or method.startswith(("textDocument/did", "$/"))
        editor.send(message if is_told else {**message, "id": number})
        probe = editor.at("hover", PROBE, TEXT, "causal")
        assert probe is not None, "the server has lost a document"
        if is_told:
            return (f"{str(method)[:30]} told",)
        answer = _answer(editor, number)
        error = answer.get("error", {})
        assert "dcp_dsl" not in str(error.get("data")), answer  # raised by what is ours
        known = method if method in {t["method"] for t in lsp_templates()} else "other"
        return (f"{known} {error.get('code')} {answer.get('result') is not None}",)

    def draw(rng: random.Random) -> tuple[str, bytes, Read]:
        return "a.json", json.dumps(odd_json(rng.choice(templates), rng)).encode(), read

    return draw


def _answer(editor: Editor, number: int) -> dict[str, Any]:
    """Find the answer to a question among what has arrived; it came before or comes soon.

    pygls shows a message, and sends no answer, where parameters are not those of the method.
    """
    end = time.monotonic() + 15
    while time.monotonic() < end:
        for note in editor.notes:
            is_shown = note.get("method") == "window/showMessage"
            if note.get("id") == number or is_shown:
                editor.notes.clear()
                return note
        editor.notes.append(editor.received.get(timeout=15))
    raise AssertionError("no answer")


KINDS = {"specs": spec_cases, "http": http_cases, "lsp": lsp_cases}
