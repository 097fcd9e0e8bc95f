"""The demonstration: documents, batches, and one command that ends with verified runs."""

import asyncio
import encodings
import importlib
import json
import subprocess
import sys
from dataclasses import asdict, replace
from itertools import combinations, islice
from pathlib import Path
from types import ModuleType
from typing import cast

import demo_table
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dcp_dashboard.demo import pipeline
from dcp_dashboard.demo.pipeline import (
    MAX_TOKENS,
    MIN_TOKENS,
    DemoConfig,
    Placed,
    Setting,
    choose_batch,
    compile_batch,
    executed_setting,
    methods,
    planned_setting,
    read_documents,
    split_layout,
    write_datasets,
)
from dcp_dsl import DatasetError, Spec, read_dataset
from dcp_dsl.cli import dcpm
from dcp_planner import (
    Cluster,
    ModelShape,
    PlanConfig,
    build_plan,
    preset,
    read_plan,
    simulate,
    validate,
)

DECORATED = b"@decorated\n@twice\ndef f():\n    pass\n"


@pytest.mark.parametrize(
    ("header", "answers"),
    [
        (b'"""Doc."""\nimport os\n\n', (DECORATED + b"\n", b"class A:\n    x = 1\n")),
        (b"x = 1\n", (b"@a\n@b\nclass C:\n    pass\n", b"async def f(): pass\n")),
        (b"x = 1\r\ny = 2\r\n", ()),
        ("# ü\r\n".encode(), (b"def f(): pass\r\n",)),
    ],
)
def test_header_and_definitions_tile_the_source(header, answers):
    source = header + b"".join(answers)
    assert split_layout(source) == (len(header), tuple(map(len, answers)))


def test_broken_and_short_files_are_left_out_and_long_ones_cut(tmp_path: Path):
    for name, source in {
        "broken": "def (" * 40, "nul": "x = 1\n" * 20 + "\0", "test/skipped": "x = 1\n" * 40,
        "short": "#" * (MIN_TOKENS - 2) + "\n", "enough": "#" * (MIN_TOKENS - 1) + "\n",
        "late": "x = 1\n" * 12 + "async def f(): pass\n",
        "long": "x = 1\n" * 10 + "def f():\n" + "    pass\n" * MAX_TOKENS,
    }.items():  # fmt: skip
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(source)
    found = {d.path: (d.header_len, d.answer_lens, len(d.text)) for d in read_documents(tmp_path)}
    assert found == {
        "enough.py": (MIN_TOKENS, (), MIN_TOKENS), "late.py": (72, (20,), 92),
        "long.py": (60, (MAX_TOKENS - 60,), MAX_TOKENS),
    }  # fmt: skip


def test_every_document_is_dealt_out_once(tmp_path: Path):
    documents = list(islice(read_documents(), 40))  # of the standard library
    assert len(documents) == 40
    assert all(d.header_len + sum(d.answer_lens) == len(d.text) <= MAX_TOKENS for d in documents)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    write_datasets(documents, paths, seed=1)
    dealt = [name for path in paths for name in pq.read_table(path)["path"].to_pylist()]
    assert sorted(dealt) == sorted(d.path for d in documents)
    assert sorted(tmp_path.iterdir()) == paths


@given(st.lists(st.integers(1, 30), max_size=8), st.integers(1, 60))
def test_chosen_batch_never_exceeds_the_budget(lengths: list[int], budget: int):
    chosen = choose_batch(lengths, budget)
    assert len(set(chosen)) == len(chosen)
    assert sum(lengths[i] for i in chosen) <= budget


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(20, 40))
def test_rest_of_a_batch_is_filled_as_well_as_any_choice_could(lengths: list[int], budget: int):
    chosen = choose_batch(lengths, budget)
    head = 0
    taken = []
    while head < len(lengths) and budget - sum(lengths[i] for i in taken) > budget // 2:
        taken.append(head)  # every length is below half the budget, so each one fits
        head += 1
    used = sum(lengths[i] for i in taken)
    rest = [lengths[i] for i in range(head, len(lengths))]
    best = max(
        sum(choice)
        for size in range(len(rest) + 1)
        for choice in combinations(rest, size)
        if sum(choice) <= budget - used
    )
    assert sum(lengths[i] for i in chosen) == used + best


@pytest.mark.parametrize("tokens", [2048, 131_072])
def test_nothing_fits_gives_an_empty_batch(tokens: int):
    assert choose_batch([tokens + 1], tokens) == ()


LENGTHS = (40, 90, 30, 70)


@pytest.fixture
def batch(tmp_path):
    """Rows of a data set that fill 200 tokens, compiled."""
    rows = {"length": LENGTHS, "header_len": [10] * 4, "answer_lens": [[n - 10] for n in LENGTHS]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    spec = Spec.from_text('mask mine = causal\nfor "*/rows.parquet" use mine\n')
    dataset = read_dataset(tmp_path / "rows.parquet")
    attachment = spec.attachment((tmp_path / "rows.parquet").as_posix(), dataset.columns)
    setting = Setting(200, ModelShape(2, 1, 16, 4), Cluster(2, 2))
    return spec, dataset, attachment, setting


def test_a_batch_is_compiled_as_its_mask_says(batch):
    made = compile_batch(*batch)
    chosen = choose_batch(LENGTHS, 200)
    assert np.diff(made.sparsity.batch.cu_seqlens).tolist() == [LENGTHS[i] for i in chosen]
    assert made.sparsity.num_pairs == sum(n * (n + 1) // 2 for n in (LENGTHS[i] for i in chosen))
    assert made.provenance.origin == f"rows.parquet, rows {', '.join(map(str, chosen))}"
    assert made.provenance.mask == "mine"
    assert len(made.provenance.samples) == len(made.names) == len(chosen)
    assert [name.split(":")[0] for name in made.names] == [f"row {i}" for i in chosen]
    *rest, setting = batch
    with pytest.raises(DatasetError, match="has 20 tokens or fewer, the shortest has 30"):
        compile_batch(*rest, Setting(20, setting.shape, setting.cluster))


def test_the_report_of_a_batch_counts_its_blocks_and_pairs(batch, tmp_path):
    made, setting = compile_batch(*batch), batch[-1]
    plans = tuple(
        build_plan(made.sparsity, setting.shape, setting.cluster, PlanConfig(name))
        for name in ("static:contiguous", "static:zigzag")
    )
    traces = tuple(map(simulate, plans))
    found = pipeline._batch_report(Placed(made, plans, traces, tmp_path / "a.dcpplan"))
    lengths = [LENGTHS[i] for i in choose_batch(LENGTHS, 200)]
    sparsity, of_sequence = made.sparsity, np.searchsorted(
        made.sparsity.batch.cu_seqlens, made.sparsity.q_bounds[:-1], side="right"
    )  # fmt: skip
    assert asdict(found) | {"compile_s": 0, "methods": 0, "best_static": 0} == {
        "plan": "a.dcpplan", "tokens": sum(lengths), "sequences": len(lengths),
        "block_size": sparsity.block_q, "nodes": 2, "devices": 4, "pairs": sparsity.num_pairs,
        "density": 1.0, "sparsity": 1 - sparsity.num_pairs / sum(n**2 for n in lengths),
        "full_blocks": int((sparsity.kind == 2).sum()),
        "partial_blocks": int((sparsity.kind == 1).sum()),
        "empty_blocks": sum(int((of_sequence == s).sum()) ** 2 for s in set(of_sequence.tolist()))
        - sparsity.num_blocks,
        "compile_s": 0, "methods": 0, "best_static": 0,
    }  # fmt: skip
    assert found.compile_s == made.compile_s
    for method, plan, trace in zip(found.methods, plans, traces, strict=True):
        transfers, node = plan.transfers, setting.cluster.node_of_device
        crosses = node[transfers.source] != node[transfers.target]
        back = transfers.is_backward
        assert method.method == plan.partitioner
        assert method.bytes_forward == transfers.size_bytes[~back].sum()
        assert method.bytes_backward == transfers.size_bytes[back].sum()
        assert method.bytes_between_nodes == transfers.size_bytes[crosses].sum()
        assert method.predicted_s == trace.seconds()
        work = np.bincount(plan.tiles.device, plan.tiles.pairs, 4)
        assert method.compute_imbalance == pytest.approx(work.max() / work.mean())
        tokens = np.bincount(plan.blocks.owner, plan.blocks.num_tokens, 4)
        assert method.over_caps == (("tokens",) if tokens.max() > 1.1 * tokens.mean() else ())
    fastest = min(found.methods, key=lambda method: method.predicted_s)
    assert found.best_static["of_all"] == fastest.method


def test_settings_are_those_of_the_paper_and_of_the_run(tmp_path):
    setting = planned_setting()
    assert (setting.cluster.nodes, setting.cluster.devices_per_node) == (4, 8)
    assert setting.shape == ModelShape(q_heads=8, kv_heads=2, head_dim=128, dtype_bytes=2)
    config = DemoConfig(tmp_path, ranks=3, tokens=999)
    setting = executed_setting(config)
    assert (setting.tokens, setting.cluster.nodes, setting.cluster.num_devices) == (999, 1, 3)
    assert setting.shape == ModelShape(q_heads=4, kv_heads=2, head_dim=64, dtype_bytes=4)
    assert (DemoConfig(tmp_path).ranks, DemoConfig(tmp_path).seed) == (4, 0)


DEMO = ("demo", "--no-serve", "--json", "--ranks", "2", "--tokens", "1024")


@pytest.mark.dist
def test_demo_verifies_four_masks_and_leaves_readable_plans(tmp_path: Path, monkeypatch):
    setting = planned_setting()
    assert (setting.tokens, setting.cluster.num_devices) == (131_072, 32)
    small = replace(setting, tokens=4096, cluster=preset("a100-p4de", 2, 2))
    monkeypatch.setattr(pipeline, "planned_setting", lambda: small)
    # Enough files that batches are filled, whichever files a Python has.
    few = [d for p in (asyncio, encodings, importlib) for d in read_documents(folder_of(p))]
    monkeypatch.setattr(pipeline, "read_documents", lambda: few)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(dcpm, DEMO, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    check(done.stdout, done.stderr, tmp_path, small.tokens)


@pytest.mark.slow
@pytest.mark.dist
def test_demo_plans_131072_tokens_in_a_process_of_its_own(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", "from dcp_dsl.cli import main; main()", *DEMO],
        capture_output=True, text=True, cwd=tmp_path, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check(done.stdout, done.stderr, tmp_path, 131_072)


def folder_of(package: ModuleType) -> Path:
    return Path(cast(str, package.__file__)).parent


def check(out: str, err: str, folder: Path, tokens: int) -> None:
    """Judge what the demonstration printed and the plans that it left in a folder."""
    report = json.loads(out)
    assert (report["schema"], report["verified"], report["url"]) == ("dcp.demo/1", True, None)
    assert [m["mask"].split("(")[0] for m in report["masks"]] == [
        "causal", "streaming_llm", "many_shot", "shared_question",
    ]  # fmt: skip
    for mask in report["masks"]:
        assert mask["verified"]
        assert {e["tensor"] for e in mask["errors"]} == {"out", "dq", "dk", "dv"}
        assert 0.95 * tokens < mask["planned"]["tokens"] <= tokens
        planned = {m["method"]: m for m in mask["planned"]["methods"]}
        layouts = {name: m for name, m in planned.items() if name.startswith("static:")}
        assert list(planned)[:2] == ["portfolio", "kahypar"]
        assert len(layouts) >= 5
        for m in planned.values():
            assert m["over_caps"] == (["tokens"] if m["token_imbalance"] > 1.1 else [])
        held = {name: m for name, m in layouts.items() if m["token_imbalance"] <= 1.1}
        for scope, known in (("of_all", layouts), ("within_token_cap", held)):
            fastest = min(known, key=lambda name: known[name]["predicted_s"], default=None)
            assert mask["planned"]["best_static"].get(scope) == fastest
        for batch, sources in (
            (mask["planned"], ["simulated"]),
            (mask["executed"], ["simulated", "measured"]),
        ):
            file = read_plan(folder / report["folder"] / batch["plan"])
            validate(file.plan)
            assert [trace.source for trace in file.traces] == sources
            assert int(file.plan.tiles.pairs.sum()) == batch["pairs"]
    assert "causal: running on 2 processes" in err  # progress, not on standard output


def test_demo_says_what_is_wrong_with_its_folder(tmp_path: Path, monkeypatch):
    (tmp_path / "taken").write_text("")
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(dcpm, ["demo", "--no-serve", "--out", "taken"]).exception
    assert str(error) == "taken: cannot be written: File exists; choose another name"
    assert error.exit_code == 2


def test_demo_does_without_kahypar(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "kahypar", None)
    found = methods(planned_setting())
    assert found[0] == "portfolio"
    assert all(name.startswith("static:") for name in found[1:])


@pytest.mark.parametrize(
    ("best", "rows"),
    [
        (
            {"of_all": "static:ring", "within_token_cap": "static:grid"},
            ["static contiguous", "static zigzag", "static ring, **best of all**",
             "static grid, **best within the token cap**"],
        ),
        (
            {"of_all": "static:zigzag", "within_token_cap": "static:zigzag"},
            ["static contiguous", "static zigzag, **best of all and within the token cap**"],
        ),
        (
            {"of_all": "static:ring"},
            ["static contiguous", "static zigzag", "static ring, **best of all**",
             "no static layout holds the token cap"],
        ),
    ],
)  # fmt: skip
def test_the_table_of_the_readme_names_the_best_layouts(best: dict[str, str], rows: list[str]):
    layouts = ("contiguous", "zigzag", "ring", "documents", "grid")
    method = {"bytes_forward": 2_000_000_000, "bytes_backward": 1_440_000_000,
              "bytes_between_nodes": 456_000_000, "predicted_s": 1.234, "compute_imbalance": 2.6,
              "token_imbalance": 1.39, "over_caps": ("compute", "tokens")}  # fmt: skip
    methods = [
        {"method": name, **method}
        for name in ("portfolio", "kahypar", *(f"static:{name}" for name in layouts))
    ]
    mask = {"mask": "causal(w = 4)", "errors": [], "executed": {"tokens": 8192},
            "planned": {"best_static": best, "density": 1, "methods": methods}}  # fmt: skip
    text = demo_table.table({"ranks": 4, "masks": [mask]}).partition("Then")[0]
    cells = [line.split(" | ") for line in text.splitlines()[2:-1]]
    assert [row[2] for row in cells] == ["dcp-dsl", "KaHyPar, refined", *rows]
    causal = "| `causal` | 100.0% | dcp-dsl | 3,440 MB | 456 MB | 2.60\\* | 1.39\\* | 1234.0 ms |"
    assert text.splitlines()[2] == causal
