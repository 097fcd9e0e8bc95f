"""The demonstration: documents, masks, block sparsity, plans, a run, its verification.

The documents are on every machine: the source files of the Python standard library. One byte is one
token. The text of a file before the first top-level function or class is a question; each function
or class is an answer, up to the next. So lengths are as uneven as those of training data.
"""

import ast
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np

from dcp_dashboard.demo.report import BatchReport, DemoReport, MaskResult, MethodReport
from dcp_dashboard.library.folder import DashboardError
from dcp_dsl import (
    Attachment,
    BlockSparsity,
    Dataset,
    DatasetError,
    Spec,
    load,
    read_dataset,
    row_name,
)
from dcp_dsl.files import make_folder, replacing
from dcp_dsl.forms import BlockKind
from dcp_planner import (
    PARTITIONERS,
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    Provenance,
    Trace,
    build_plan,
    compile_seconds,
    cut_blocks,
    fastest_block_size,
    measure,
    preset,
    simulate,
    static_layouts,
    stopwatch,
    write_plan,
)
from dcp_planner.report import best_static, over_caps
from dcp_runtime import ProcessWorld, RunConfig, open_world, run_plan

MAX_TOKENS = 131_072
MIN_TOKENS = 64

_SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "__pycache__"})
"""Folders that differ from machine to machine, or hold no plain source."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One source file, its path relative to the library and at most `MAX_TOKENS` bytes of text.

    ``header_len + sum(answer_lens) == len(text)``.
    """

    path: str
    text: bytes
    header_len: int
    answer_lens: tuple[int, ...]


def split_layout(source: bytes) -> tuple[int, tuple[int, ...]]:
    """Return the lengths of a source file's header and of each top-level definition, in bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in old files, which change no layout
        body = ast.parse(source).body
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    # A definition begins at its first decorator; `lineno` is the line of `def` or `class`.
    lines = [
        min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for node in body
        if isinstance(node, definitions)
    ]
    line_start = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]
    cuts = [*(line_start[line - 1] for line in lines), len(source)]
    return cuts[0], tuple(end - start for start, end in pairwise(cuts))


def read_documents(root: Path | None = None) -> Iterator[SourceFile]:
    """Read the source files below `root` (default: the standard library), sorted by name.

    Longer files are cut at `MAX_TOKENS`; files shorter than `MIN_TOKENS` or not valid Python are
    left out.
    """
    library = root or Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library)
        if _SKIPPED.intersection(inside.parts):
            continue
        source = path.read_bytes()
        try:
            header, answers = split_layout(source)
        except (SyntaxError, ValueError):  # ValueError: a NUL byte
            continue
        if len(source) >= MIN_TOKENS:
            # Cutting the ends at the limit shortens one answer and leaves 0 for all behind it.
            ends = np.minimum(np.cumsum([header, *answers]), MAX_TOKENS)
            first, *rest = (int(n) for n in np.diff(ends, prepend=0))
            kept = tuple(n for n in rest if n)
            yield SourceFile(inside.as_posix(), source[:MAX_TOKENS], first, kept)


def write_datasets(documents: Sequence[SourceFile], paths: Sequence[Path], seed: int) -> None:
    """Deal documents out at random to one Parquet file per path.

    Columns: ``path`` text, ``tokens`` bytes, lengths in tokens ``length``, ``header_len`` and
    ``answer_lens``.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    order = np.random.default_rng(seed).permutation(len(documents))
    for number, path in enumerate(paths):
        rows = [documents[i] for i in order[number :: len(paths)]]
        table = pa.table(
            {
                "path": pa.array([d.path for d in rows], pa.string()),
                "tokens": pa.array([d.text for d in rows], pa.binary()),
                "length": pa.array([len(d.text) for d in rows], pa.int64()),
                "header_len": pa.array([d.header_len for d in rows], pa.int64()),
                "answer_lens": pa.array([d.answer_lens for d in rows], pa.list_(pa.int64())),
            }
        )
        with replacing(path, DashboardError) as draft:
            pq.write_table(table, draft)


def choose_batch(lengths: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """Choose samples that add up to `num_tokens` tokens, or to as many as possible.

    It takes samples in order, like a packing data loader, until half is filled, and solves a subset
    sum over the samples that follow. O(samples * num_tokens / 64). Returns indices in ascending
    order; empty if no sample fits.
    """
    taken: list[int] = []
    left = num_tokens
    candidates = list(range(len(lengths)))
    while candidates and left > num_tokens // 2:
        index = candidates.pop(0)
        if lengths[index] <= left:
            taken.append(index)
            left -= lengths[index]
    return tuple(sorted(taken + _subset_sum(lengths, candidates, left)))


def _subset_sum(lengths: Sequence[int], candidates: Sequence[int], target: int) -> list[int]:
    """Choose candidates whose lengths add up to the target, or to as much below it as possible."""
    # Bit n of `reachable[i]`: some of the first i candidates add up to n tokens. A shift by a
    # length adds that candidate to all sums at once. Sums above the target are of no use.
    keep = (1 << (target + 1)) - 1
    reachable = [1]
    for index in candidates:
        reachable.append((reachable[-1] | (reachable[-1] << lengths[index])) & keep)
        if reachable[-1] >> target:  # the target itself is reached
            break
    # Backwards: a candidate was needed where the sum could not be reached without it.
    rest = reachable[-1].bit_length() - 1
    chosen: list[int] = []
    for step in range(len(reachable) - 1, 0, -1):
        if not (reachable[step - 1] >> rest) & 1:
            index = candidates[step - 1]
            chosen.append(index)
            rest -= lengths[index]
    return chosen


Progress: TypeAlias = Callable[[str], None]

DATASETS = ("pretrain", "long_chat", "examples", "answers")
"""Data sets by name; `demo.dcpm` attaches a mask to each."""
PLANNERS = ("portfolio", "kahypar")


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Output folder, ranks of the real run, tokens of its batch, seed of all random choices."""

    out: Path
    ranks: int = 4
    tokens: int = 6144
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """Tokens of a batch, and the model and cluster that it is planned for."""

    tokens: int
    shape: ModelShape
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class CompiledBatch:
    """Chosen samples of one data set, compiled to block sparsity."""

    sparsity: BlockSparsity
    provenance: Provenance
    names: tuple[str, ...]
    compile_s: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A batch placed by every method. The plan of the first method is saved as `file`."""

    batch: CompiledBatch
    plans: tuple[Plan, ...]
    traces: tuple[Trace, ...]
    file: Path


def planned_setting() -> Setting:
    """Return the setting of the paper's microbenchmark: 4 nodes of 8 A100, 131,072 tokens."""
    return Setting(131_072, ModelShape(8, 2, 128, 2), preset("a100-p4de", 4, 8))


def executed_setting(config: DemoConfig) -> Setting:
    """Return the setting of the run: a batch small enough for dense fp64 attention."""
    cluster = preset("cpu-gloo", 1, config.ranks)
    return Setting(config.tokens, ModelShape(4, 2, 64, 4), cluster)


def demo_spec() -> Path:
    """Return the path of `demo.dcpm`, in the installed package or the checkout's examples."""
    packaged = Path(__file__).with_name("demo.dcpm")
    return packaged if packaged.exists() else Path(__file__).parents[3] / "examples" / "demo.dcpm"


def methods(setting: Setting) -> tuple[str, ...]:
    """Return the planners installed here, then every static layout that the setting allows."""
    planners = tuple(name for name in PLANNERS if PARTITIONERS[name].unavailable() is None)
    return (*planners, *static_layouts(setting.shape, setting.cluster))


def run_demo(config: DemoConfig, progress: Progress) -> DemoReport:
    """Run all steps; write ``data/*.parquet`` and ``plans/*.dcpplan`` below ``config.out``."""
    with stopwatch() as watch:
        for folder in (config.out, config.out / "data", config.out / "plans"):
            make_folder(folder, DashboardError)
        progress("reading the source files of the standard library")
        documents = list(read_documents())
        paths = [config.out / "data" / f"{name}.parquet" for name in DATASETS]
        write_datasets(documents, paths, config.seed)
        spec = load(demo_spec())
        with open_world(config.ranks) as world:
            masks = tuple(_run_mask(spec, path, config, world, progress) for path in paths)
    return DemoReport(
        folder=str(config.out / "plans"),
        ranks=config.ranks,
        documents=len(documents),
        seconds=watch.seconds,
        masks=masks,
        compile_s=compile_seconds(),
    )


def _run_mask(
    spec: Spec, path: Path, config: DemoConfig, world: ProcessWorld, progress: Progress
) -> MaskResult:
    dataset = read_dataset(path)
    attachment = spec.attachment(path.as_posix(), dataset.columns)
    mask = attachment.mask
    folder = config.out / "plans"

    def placed(setting: Setting) -> Placed:
        devices = setting.cluster.num_devices
        doing = f"{mask.name}: planning {setting.tokens:,} tokens for {devices} devices of "
        doing += setting.cluster.name
        progress(doing)
        batch = compile_batch(spec, dataset, attachment, setting)
        plans = []  # the plan that is saved and run comes first: that of the default planner
        for number, method in enumerate(methods(setting)):
            if number == 1:
                progress(f"{mask.name}: the usual layouts of these tokens, to compare")
            asked = PlanConfig(partitioner=method, seed=config.seed)
            plan = build_plan(batch.sparsity, setting.shape, setting.cluster, asked)
            named = replace(plan, provenance=batch.provenance, sequence_names=batch.names)
            plans.append(named)
        file = folder / f"{mask.name}-{batch.sparsity.batch.num_tokens}.dcpplan"
        return Placed(batch, tuple(plans), tuple(map(simulate, plans)), file)

    large, small = placed(planned_setting()), placed(executed_setting(config))
    write_plan(large.file, large.plans[0], large.traces[:1])
    progress(f"{mask.name}: running on {config.ranks} processes, then checking every number")
    run_config = RunConfig(ranks=config.ranks, seed=config.seed, verify=True)
    result = run_plan(small.plans[0], run_config, world)
    traces = (small.traces[0], result.trace)
    write_plan(small.file, small.plans[0], traces)
    return MaskResult(
        mask=mask.call,
        dataset=path.name,
        planned=_batch_report(large),
        executed=_batch_report(small),
        verified=bool(result.verified),
        errors=result.errors,
        measured_s=result.seconds,
        exposed_s=result.exposed_s,
    )


def compile_batch(
    spec: Spec, dataset: Dataset, attachment: Attachment, setting: Setting
) -> CompiledBatch:
    """Choose samples that fill the setting's tokens and compile their masks."""
    chosen = choose_batch([int(n) for n in dataset.lengths], setting.tokens)
    if not chosen:
        raise DatasetError(
            f"no document of {dataset.path} has {setting.tokens} tokens or fewer, the shortest has "
            f"{dataset.lengths.min()}; ask for more with --tokens"
        )
    rows = [dataset[i] for i in chosen]
    samples = [attachment.sample(row) for row in rows]
    with stopwatch() as watch:
        forms = [attachment.mask.compile(sample) for sample in samples]
        block = fastest_block_size([forms], setting.shape, setting.cluster)
        sparsity = cut_blocks(forms, block)
    provenance = Provenance(
        spec=spec.source,
        mask=attachment.mask.call,
        samples=tuple(sample.to_json() for sample in samples),
        origin=f"{Path(dataset.path).name}, rows {', '.join(map(str, chosen))}",
    )
    names = tuple(map(row_name, chosen, rows))
    return CompiledBatch(sparsity, provenance, names, watch.seconds)


def _batch_report(placed: Placed) -> BatchReport:
    sparsity, cluster = placed.batch.sparsity, placed.plans[0].cluster
    lengths = np.diff(sparsity.batch.cu_seqlens).astype(np.int64)
    # Blocks do not cross sequences: every border of a sequence is one of blocks.
    borders = np.searchsorted(sparsity.q_bounds, sparsity.batch.cu_seqlens)
    blocks_per_sequence = np.diff(borders)
    full = int((sparsity.kind == BlockKind.FULL).sum())
    methods = tuple(map(_method_report, placed.plans, placed.traces))
    seconds = {method.method: method.predicted_s for method in methods}
    over = {method.method: method.over_caps for method in methods}
    best = best_static(methods[0].predicted_s, seconds, over)
    return BatchReport(
        plan=placed.file.name,
        tokens=sparsity.batch.num_tokens,
        sequences=sparsity.batch.num_sequences,
        block_size=sparsity.block_q,
        nodes=cluster.nodes,
        devices=cluster.num_devices,
        pairs=sparsity.num_pairs,
        density=sparsity.num_pairs / int((lengths * (lengths + 1) // 2).sum()),
        sparsity=1 - sparsity.num_pairs / int((lengths**2).sum()),
        full_blocks=full,
        partial_blocks=sparsity.num_blocks - full,
        empty_blocks=int((blocks_per_sequence**2).sum()) - sparsity.num_blocks,
        compile_s=placed.batch.compile_s,
        methods=methods,
        best_static={scope: rival.name for scope, rival in best.items()},
    )


def _method_report(plan: Plan, trace: Trace) -> MethodReport:
    metrics = measure(plan)
    return MethodReport(
        method=plan.partitioner,
        bytes_forward=metrics.forward.total_bytes,
        bytes_backward=metrics.backward.total_bytes,
        bytes_between_nodes=metrics.forward.inter_node_bytes + metrics.backward.inter_node_bytes,
        compute_imbalance=metrics.compute_imbalance,
        token_imbalance=metrics.token_imbalance,
        over_caps=tuple(over_caps(metrics, PlanConfig())),
        predicted_s=trace.seconds(),
    )
