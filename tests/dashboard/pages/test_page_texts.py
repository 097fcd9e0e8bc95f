"""The pages, whole, as texts: each of plans, files and addresses of which it says another thing."""

import json
import re
from dataclasses import replace
from urllib.parse import urlencode

import numpy as np
import pytest
from dash import html
from shown_texts import folded, json_text, page_text

from dcp_dashboard import create_app
from dcp_dashboard.facts.comparison import Comparison, Side
from dcp_dashboard.library.folder import plan_key
from dcp_dashboard.library.plans import PlanLibrary
from dcp_dashboard.pages import compare, edit, plan_list, plan_views, reports
from dcp_dashboard.pages.charts import TEMPLATE, device_axis
from dcp_dashboard.pages.compare_panels import (
    compare_charts,
    constants_panel,
    kinds_panel,
    moves_panel,
    verdict_panel,
)
from dcp_dashboard.pages.help import keyboard_dialog
from dcp_dashboard.pages.layout import shell
from dcp_dashboard.pages.plan import plan_page
from dcp_dashboard.pages.plan_views import mask_page, timeline_page
from dcp_dashboard.pages.reports import step_page
from dcp_dashboard.web.app import render_page
from dcp_planner import write_plan


def plain(texts, root, *names):
    """Texts without what differs between machines; keys of files are their names."""
    changes = {plan_key(name): f"<{name}>" for name in names} | {str(root): "FOLDER"}
    pattern = re.compile("|".join(map(re.escape, changes)))

    def changed(text):
        known = pattern.sub(lambda found: changes[found[0]], text)
        return re.sub(r'(?<=versions=)("?)[\d,-]+\1|(?<=\?m=)[0-9a-f]{12}', "…", known)

    return folded({changed(title): changed(text) for title, text in texts.items()})


def test_pages_of_plans(shown, snapshots):
    texts = {name: page_text(plan_page(loaded)) for name, loaded in shown.items()}
    for name in ("small", "grouped", "empty"):
        texts[f"{name}, mask"] = page_text(mask_page(shown[name]))
        texts[f"{name}, timeline"] = page_text(timeline_page(shown[name]))
    keys = {loaded.entry.key for loaded in shown.values()}
    same = {title: re.sub("|".join(keys), "KEY", text) for title, text in texts.items()}
    snapshots.check("plan_pages", folded(same))


def test_a_plan_that_a_browser_could_not_hold(shown, monkeypatch, snapshots):
    tiles, events = len(shown["unequal"].plan.tiles), len(shown["unequal"].traces["measured"])
    texts = {}
    for more in (0, 1):
        monkeypatch.setattr(plan_views, "MAX_TILES", tiles - more)
        monkeypatch.setattr(plan_views, "MAX_EVENTS", events - more)
        mask = plan_views.mask_panel(shown["unequal"])
        timeline = plan_views._no_timeline(shown["unequal"])
        texts[f"{more} too many"] = page_text([mask, timeline])
    snapshots.check("too_large", folded(texts))


PAIRED = ("zigzag.dcpplan", "contiguous.dcpplan", "coarse.dcpplan", "large.dcpplan")


def test_the_list_of_plans(paired_folder, served_folder, tmp_path, snapshots):
    served = ("small.dcpplan", "deep/large.dcpplan", "cut.dcpplan")
    texts = {}
    for folder, names, queries in (
        (paired_folder, PAIRED, ["", "?q=ZIG&sort=bytes&desc=1", "?sort=measured"]),
        (served_folder, served, ["?sort=name&desc=1&q=plan", "?q=nothing"]),
        (tmp_path, (), ["?"]),
    ):
        pages = {f"/{q}": page_text(render_page(PlanLibrary(folder), "/", q)) for q in queries}
        texts |= plain(pages, folder, *names)
    snapshots.check("plan_list", folded(texts))


def comparisons(paired_folder):
    """Sides by the names of their files and traces, A and B."""
    keys = {name.removesuffix(".dcpplan"): plan_key(name) for name in PAIRED}
    return {
        "two placements": {"a": keys["zigzag"], "b": keys["contiguous"]},
        "prediction and run, backward": {"a": keys["zigzag"], "b": keys["zigzag"],
                                         "phase": "backward"},
        "run and prediction": {"a": keys["zigzag"], "as": "measured", "b": keys["zigzag"],
                               "bs": "simulated"},
        "other blocks": {"a": keys["coarse"], "b": keys["zigzag"], "bs": "measured"},
        "other batches": {"a": keys["large"], "b": keys["contiguous"]},
        "one side": {"a": keys["zigzag"]},
        "no such trace": {"a": keys["coarse"], "as": "measured", "b": keys["zigzag"]},
    }  # fmt: skip


def test_comparisons(paired_folder, snapshots):
    library = PlanLibrary(paired_folder)
    texts = {
        title: page_text(render_page(library, "/compare", "?" + urlencode(asked)))
        for title, asked in comparisons(paired_folder).items()
    }
    keys = [plan_key(name) for name in (*PAIRED[:2], *PAIRED[:1], PAIRED[2], PAIRED[3])]
    front = "?" + urlencode([("plan", key) for key in keys])
    texts["front"] = page_text(render_page(library, "/front", front))
    alone = "?" + urlencode({"plan": plan_key("large.dcpplan")})
    texts["front of one"] = page_text(render_page(library, "/front", alone))
    snapshots.check("compare", plain(texts, paired_folder, *PAIRED))


def test_sides_that_are_not_alike(shown, monkeypatch, snapshots):
    """Clusters of other rates, heads in groups, a run of many events, events that nobody has."""
    small, grouped, unequal = (shown[name] for name in ("small", "grouped", "unequal"))
    fast = replace(small.plan.cluster, name="fast", inter_bytes_per_s=1e11)
    quick = replace(small, plan=replace(small.plan, cluster=fast))
    still = replace(shown["empty"], plan=replace(shown["empty"].plan, provenance=None))
    sides = {
        "other rates": (Side(small, "simulated"), Side(quick, "simulated")),
        "other groups": (Side(small, "simulated"), Side(grouped, "simulated")),
        "other clusters": (Side(small, "measured"), Side(unequal, "measured")),
        "no events": (Side(still, "simulated"), Side(still, "simulated")),
        "no events and some": (Side(still, "simulated"), Side(small, "simulated")),
    }
    texts = {}
    for title, (a, b) in sides.items():
        made = Comparison(a, b)
        parts = [verdict_panel(made)]
        if made.has_same_blocks:
            parts.append(moves_panel(made))
        texts[title] = page_text(parts)
        texts[f"{title}: charts"] = page_text(compare_charts(made))
    run = Comparison(Side(unequal, "simulated"), Side(unequal, "measured"))
    texts["times of copies"] = page_text(kinds_panel(run))
    trace = small.traces["simulated"]
    some = np.random.default_rng(0).choice((1, 60), len(trace))
    odd = replace(trace, end_ns=trace.start_ns + some * (trace.end_ns - trace.start_ns))
    odd = replace(small, traces={"simulated": trace, "measured": replace(odd, source="measured")})
    unlike = Comparison(Side(odd, "simulated"), Side(odd, "measured"))
    texts["no constant explains it"] = page_text(constants_panel(unlike))
    for most in (len(unequal.traces["measured"]), len(unequal.traces["measured"]) - 1):
        monkeypatch.setattr("dcp_dashboard.pages.compare_panels.MOST_FITTED", most)
        texts[f"constants of at most {most} events"] = page_text(constants_panel(run))
    snapshots.check("sides", folded(texts))


class Caller:
    """Calls the callbacks of an application as a browser does."""

    def __init__(self, folder):
        app = create_app(folder)
        self._client, self._known = app.server.test_client(), app.callback_map

    def call(self, output, *values, changed=0):
        (name,) = (name for name in self._known if output in re.split(r"\.{2,}", name))
        places = [name] if not name.startswith("..") else name.strip(".").split("...")
        outputs = [dict(zip(("id", "property"), each.split("."), strict=True)) for each in places]
        inputs = self._known[name]["inputs"]
        body = {
            "output": name, "outputs": outputs if name.startswith("..") else outputs[0],
            "inputs": [one | {"value": v} for one, v in zip(inputs, values, strict=True)],
            "changedPropIds": [f"{inputs[changed]['id']}.{inputs[changed]['property']}"],
        }  # fmt: skip
        answer = self._client.post("/_dash-update-component", json=body)
        if answer.status_code != 200:
            return f"status {answer.status_code}"
        found = answer.json["response"]
        return "\n".join(
            f"{name} {key}:\n{page_text(self._shown(key, value))}"
            for name, values in found.items()
            for key, value in values.items()
        )

    def _shown(self, key, value):
        if key == "figure":
            return {"type": "Graph", "namespace": "dash_core_components",
                    "props": {"figure": value}}  # fmt: skip
        if key == "data":
            return [html.Li(" ".join(map(str, one.values()))) for one in value]
        return value


def test_what_the_page_of_a_comparison_asks_for(paired_folder, snapshots):
    zigzag, contiguous = (f"{plan_key(name)}~simulated" for name in PAIRED[:2])
    caller = Caller(paired_folder)
    texts = {
        "charts": caller.call("deltas-slot.children", [zigzag, contiguous]),
        "one plan": caller.call(
            "deltas-slot.children", [zigzag, zigzag.replace("simulated", "measured")]
        ),
        "no plan": caller.call("deltas-slot.children", ["0~simulated", zigzag]),
        "three sides": caller.call("deltas-slot.children", [zigzag] * 3),
        "no side": caller.call("deltas-slot.children", [zigzag, "0~dreamt"]),
        "search": caller.call("compare-b.data", "MEASURED zig", contiguous),
        "search of the label": caller.call(
            "compare-a.data", "coarse.dcpplan · predicted", f"{plan_key(PAIRED[2])}~simulated"
        ),
        "the page": caller.call("page.children", None, None),
    }
    found = plain(texts, paired_folder, *PAIRED)
    snapshots.check("compare_callbacks", found | {"the page": found["the page"][:600]})


def test_a_picker_is_sent_so_many_options(paired_folder, monkeypatch):
    library = PlanLibrary(paired_folder)
    monkeypatch.setattr(compare, "MOST_OPTIONS", 2)
    labels = [o["label"].split(" ·")[0] for o in compare._options(library, "", None)]
    assert labels == ["coarse.dcpplan", "contiguous.dcpplan"]
    chosen = compare.Choice(plan_key("zigzag.dcpplan"), "measured")
    found = compare._options(library, "coarse", chosen)
    assert [option["value"] for option in found] == [
        chosen.value, f"{plan_key('coarse.dcpplan')}~simulated"
    ]  # fmt: skip


def batch(index, **more):
    """A batch of a report whose figures follow from its number."""
    methods = {"static:zigzag": 2 + index % 3, "static:ring": 1.5 + index % 2}
    return {
        "index": index, "tokens": 1000 * (index + 1), "sequences": 3 + index % 2,
        "lengths": {"least": 10 + index, "median": 200, "mean": 300, "most": 700 + 90 * index},
        "density": 0.5 + index / 200, "forward_bytes": 10**6 * index, "backward_bytes": 2 * 10**6,
        "compute_imbalance": 1.1, "token_imbalance": 1 + index / 100,
        "predicted_forward_s": 0.25, "predicted_backward_s": 0.75, "plan_s": 0.2 + index / 1000,
        "backend": "portfolio", "mask": "causal", "origin": f"rows {index}",
        "file": f"batch-{index:05}.dcpplan", "warnings": ["tokens: full"] if index == 3 else [],
        "against": {
            name: {"predicted_forward_s": s / 2, "predicted_backward_s": s / 2,
                   "over_caps": ["tokens"] if index == 1 else []}
            for name, s in methods.items()
        },
    } | more  # fmt: skip


def report(batches, **more):
    return {
        "schema": "dcp.batches/1", "spec": "sft/train.dcpm", "dataset": "data/rows.parquet",
        "mask": "causal", "num_wanted": 60, "num_available": 500, "is_complete": True,
        "notes": ["a note"], "cluster": {"name": "mine", "nodes": 2, "devices_per_node": 4},
        "batches": batches, "distribution": {}, "speedup": {},
    } | more  # fmt: skip


PLANNED = "runs/batch-00051.dcpplan"
BARE = {"spec": "", "dataset": "", "mask": None, "num_available": None, "cluster": {}, "notes": []}
REPORTS = {
    "runs/whole": report([batch(i) for i in range(53)]),
    "few": report([batch(1, length_counts=[0, 0, 4, 1]), batch(0, length_counts=[0, 2, 1])],
                  is_complete=False),
    "bare": report([{"index": 4}, {"tokens": 5}], **BARE, is_complete=False, num_wanted=None),
    "one": report([batch(2, against={}, lengths={}, plan_s=None)], num_available=0),
    "none": report([], dataset=""),
    "broken": {"schema": "other"},
}  # fmt: skip


@pytest.fixture(scope="module")
def many_kinds(tmp_path_factory, small_plan):
    """Reports of data sets with one of their plans, planned steps and runs."""
    folder = tmp_path_factory.mktemp("kinds")
    for name, content in REPORTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.dcpbatches.json").write_text(json.dumps(content))
    write_plan(folder / PLANNED, small_plan)
    (folder / "a.dcpstep.json").write_text(json.dumps(STEP))
    for name, lines in RUNS.items():
        (folder / name).mkdir()
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / name / "run.dcprun.jsonl").write_text(text)
    return folder


def group(micro_batch, first, width, seconds, *documents):
    return {
        "micro_batch": micro_batch, "first": first, "width": width, "linear_s": seconds,
        "attention_s": seconds / 4, "documents": [d for d, _ in documents],
        "tokens": [n for _, n in documents],
    }  # fmt: skip


STEP = {
    "schema": "dcp.step/1", "policy": "groups from 2 on", "step_s": 6.0, "over_balance": 1.125,
    "max_tokens": 1.25, "replicas": 2, "context_ranks": 2, "stages": 2, "micro_batches": 2,
    "groups": [
        group(0, 0, 4, 1.0, (7, 4000)), group(0, 0, 2, 0.5, (1, 900), (2, 100)),
        group(0, 2, 1, 0.25, *((n, 10 * n) for n in range(3, 12))),
        group(0, 3, 1, 0.25, *((n, 10 * n) for n in range(20, 28))), group(1, 2, 2, 1.5, (30, 50)),
    ],
}  # fmt: skip


def records(seconds, **more):
    return [
        {"step": step, "name": f"batch {step}", "step_s": value, "predicted_s": 0.5,
         "measured_s": 0.75 + step / 16, "slowest": step % 3, "why": f"rank {step % 3} waits",
         "queued": 2, "tokens": 1e4 * step, "exposed_share": 0.25} | more
        for step, value in seconds.items()
    ]  # fmt: skip


FIRST = records({0: 1.0, 1: 2.0, 2: 1.0, 3: 4.0, 9: 50.0}, bytes=2e6)
FIRST[1] |= {"trace": "1.dcpplan"}
FIRST[3] |= {"exposed_share": None, "trace": "kept.dcpplan", "why": ""}
RUNS = {
    "before": FIRST,
    "after": records({1: 2.5, 2: 1.25, 3: 1.0, 4: 7.0}),
    "later": records({20: 1.0}),
    "still": [],
}


def test_reports_of_data_sets(many_kinds, snapshots):
    library = PlanLibrary(many_kinds)
    names = [f"{name}.dcpbatches.json" for name in REPORTS]
    queries = {"runs/whole": ["?sort=tokens&desc=1&page=1", "?q=CAUSAL+51", "?q=full&sort=plan_s",
                              "?q=nothing"]}  # fmt: skip
    texts = {
        f"{name} {query}": page_text(
            render_page(library, f"/dataset/{plan_key(f'{name}.dcpbatches.json')}", query)
        )
        for name in REPORTS
        for query in queries.get(name, [""])
    }
    texts["the list"] = page_text(render_page(library, "/", ""))
    texts["the list, searched"] = page_text(render_page(library, "/", "?q=before"))
    others = (PLANNED, "a.dcpstep.json", *(f"{name}/run.dcprun.jsonl" for name in RUNS))
    snapshots.check("datasets", plain(texts, many_kinds, *names, *others))


def test_a_planned_step(many_kinds, monkeypatch, snapshots):
    library, key = PlanLibrary(many_kinds), plan_key("a.dcpstep.json")
    texts = {"all bars": page_text(step_page(library, key))}
    for most in (6, 5):
        monkeypatch.setattr(reports, "MOST_BARS", most)
        texts[f"{most} bars"] = page_text(step_page(library, key))
    snapshots.check("step", plain(texts, many_kinds, "a.dcpstep.json"))


def test_runs(many_kinds, snapshots):
    keys = {name: plan_key(f"{name}/run.dcprun.jsonl") for name in RUNS}
    pages = {name: f"/run/{key}" for name, key in keys.items()}
    for first, second in (("before", "after"), ("before", "later"), ("after", "still")):
        pages[f"{first} and {second}"] = f"/run/{keys[first]}/{keys[second]}"
    texts = {
        title: page_text(render_page(PlanLibrary(many_kinds), path, ""))
        for title, path in pages.items()
        if title not in ("after", "still")
    }
    snapshots.check("runs", plain(texts, many_kinds, *(f"{n}/run.dcprun.jsonl" for n in RUNS)))


def test_what_the_page_of_a_run_asks_for(many_kinds, monkeypatch, snapshots):
    before, after = (plan_key(f"{name}/run.dcprun.jsonl") for name in ("before", "after"))
    caller, step = Caller(many_kinds), "run-step.children"
    texts = {
        "step 1": caller.call(step, {"points": [{"x": 1}]}, [before, after]),
        "step 3": caller.call(step, {"points": [{"x": 3}]}, [before, ""]),
        "no click": caller.call(step, None, [before, ""]),
        "no run": caller.call(step, {"points": [{"x": 3}]}, ["0", ""]),
        "zoomed": caller.call("run-chart.figure", 1, [0.5, 3], [before, ""], changed=1),
    }
    for still_s in (-1, 1e9):
        monkeypatch.setattr("dcp_dashboard.pages.run.STILL_S", still_s)
        ticked = caller.call("run-chart.figure", 1, None, [before, after])
        texts[f"at a tick, still for {still_s}"] = ticked
    snapshots.check("run_callbacks", plain(texts, many_kinds))


def test_pages_that_need_no_plan(tmp_path, monkeypatch, snapshots):
    # Not what the library has today, nor what is installed.
    monkeypatch.setattr(edit, "library_texts", lambda: {"causal": "mask c = causal", "other": "#"})
    monkeypatch.setattr(edit, "methods", lambda: [("native", ""), ("kahypar", "not installed")])
    monkeypatch.setattr(edit, "_patterns", lambda: "[]")
    library = PlanLibrary(tmp_path)
    (tmp_path / "own.dcpm").write_text("mask own = causal")
    own = urlencode({"spec": plan_key("own.dcpm")})
    asked = {
        "edit": ("/edit", ""), "edit, a file": ("/edit", f"?{own}"),
        "edit, the library": ("/edit", "?spec=std:causal"),
        "edit, no such mask": ("/edit", "?spec=std:nothing"),
        "help": ("/help", ""), "elsewhere": ("/nowhere/" + 80 * "x", ""),
        "compare": ("/compare", ""), "front": ("/front", ""), "no plan": ("/plan/0/mask", ""),
        "too deep": ("/plan/0/mask/x", ""), "no key": ("/plan/", ""), "no run": ("/run/abc", ""),
        "of no path": ("//", "?sort[]=1&desc=x&sort=<script>"), "no step": ("/step/a/b", ""),
        "no data set": ("/dataset/a/b", ""), "runs of three": ("/run/a/b/c", ""),
        "help of help": ("/help/x", ""),
    }  # fmt: skip
    texts = {title: page_text(render_page(library, *address)) for title, address in asked.items()}
    texts["shell"] = page_text(shell(keyboard_dialog()))
    texts["template of charts"] = json_text(TEMPLATE.to_plotly_json())
    texts["examples"] = "\n".join(json_text(example) for example in plan_list.EXAMPLES)
    texts["axes"] = "\n".join(f"{n}: {json_text(device_axis(n))}" for n in (1, 17, 32, 40, 1200))
    snapshots.check("others", plain(texts, tmp_path, "own.dcpm"))
