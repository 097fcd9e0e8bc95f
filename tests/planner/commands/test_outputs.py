"""Everything that the commands print, as text and as JSON, about small plans of many kinds."""

import json
import shlex
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from command_help import help_texts
from command_runs import run
from recorded_runs import as_recorded
from short_texts import same_everywhere, short

from dcp_planner import preset, read_plan, simulate, write_cluster, write_plan
from dcp_planner.commands.compare import compare
from dcp_planner.commands.plan import plan
from dcp_planner.commands.simulate import simulate as simulate_command
from dcp_planner.commands.step import step
from dcp_planner.commands.validate import validate
from dcp_planner.commands.why import why
from dcp_planner.jit import COMPILE_CLOCK, CompileClock, Stopwatch

SPEC = """mask local(width: tokens = 8) = causal and q - k < width
mask nothing = q < k and k < q
stack mixed = 2 of local, causal
segment part = question[question_len] branch answer[answer_lens]*
mask shared = causal and (k in question or same(answer))
for "*.jsonl" use local(width = 5)
"""
ROWS = (30, 20, 400, 25, 0, 40, 13)
"""Lengths of the rows of a data set."""
COMMANDS = {
    "plan": plan, "simulate": simulate_command, "why": why, "compare": compare,
    "validate": validate, "step": step,
}  # fmt: skip
ZIGZAG = "--block 8 --cluster 1x2 --backend static:zigzag"
TWO = "--block 16 --cluster two.toml --budget fast"
SHARED = "--mask shared --sample 'question_len = 100, answer_lens = [60, 44, 37]'"
CAUSAL = "--mask causal --sample 'len = 190' --sample 'len = 130'"
PLANS = {
    "far": f"plan a.dcpm {CAUSAL} {TWO} --backend static:ring",
    "near": f"plan a.dcpm {CAUSAL} {TWO} --backend native --routing direct --partials input",
    "shared": f"plan a.dcpm {SHARED} {TWO} --backend static:heads_context",
    "local": f"plan a.dcpm --mask 'local(width = 9)' --sample 'len = 140' {ZIGZAG}",
    "alone": f"plan a.dcpm --mask causal --sample 'len = 20' {ZIGZAG} --partials float32",
    "tight": f"plan a.dcpm {CAUSAL} {TWO} --backend static:contiguous --memory-limit 500000",
}
"""Commands that make plans of several kinds, by the names of their files."""


VARIABLES = ("COLUMNS=", "FORCE_COLOR=")
"""Beginnings of words of a command that set variables, as in a shell."""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Run commands in a folder of examples; return what they print, by the command."""
    folder = tmp_path_factory.mktemp("outputs")
    (folder / "a.dcpm").write_text(SPEC)
    (folder / "rows.jsonl").write_text("\n".join(json.dumps({"len": n}) for n in ROWS))
    lengths = [900 * (1 + n * n % 17) for n in range(60)]
    (folder / "lengths.json").write_text(json.dumps(lengths))
    slow = replace(
        preset("h100-dgx", 2, 2), name="h100-two", devices_per_nic=2, memory_bytes=2_000_000,
        flops_per_s=2e13, backward_flops_per_s=None, inter_bytes_per_s=1e9, host_message_s=1e-6,
    )  # fmt: skip
    write_cluster(folder / "two.toml", slow, {})

    def told(*commands: str) -> dict[str, str]:
        return {command: _told(command) for command in commands}

    @contextmanager
    def stopwatch():
        watch = Stopwatch()
        yield watch
        watch.seconds = 0.25

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "100")
        patch.setattr("dcp_planner.batches.planning.stopwatch", stopwatch)
        # Whether this machine has the compiled code already is no fact of the output.
        patch.setattr(CompileClock, "seconds", 0.0)
        patch.setattr(COMPILE_CLOCK, "_has_told", True)
        for name, command in PLANS.items():
            found = _told(f"{command} --out {name}.dcpplan")
            assert "exit" not in found, found
        yield told


def _told(command: str) -> str:
    """Run a command; return its output, its messages, its error and its exit status."""
    words = shlex.split(command)
    name, *arguments = [word for word in words if not word.startswith(VARIABLES)]
    with pytest.MonkeyPatch.context() as patch:
        for word in words:
            if word.startswith(VARIABLES):
                patch.setenv(*word.split("="))
        found = run(COMMANDS[name], *arguments)
    is_error = found.exception is not None and not isinstance(found.exception, SystemExit)
    printed = short(json.loads(found.stdout)) if "--json" in arguments else found.stdout
    error = f"{type(found.exception).__name__}: {found.exception}" if is_error else ""
    status = f"exit {found.exit_code}" if found.exit_code else ""
    messages = found.stderr if "FORCE_COLOR=1" not in words else ""  # a bar shows seconds there
    parts = (printed, messages, error, status)
    return same_everywhere("\n".join(part.rstrip() for part in parts if part))


def test_plan(told, snapshots):
    rows = f"plan a.dcpm --dataset rows.jsonl --tokens 60 {ZIGZAG}"
    stack = f"plan a.dcpm --mask mixed --sample 'len = 70' {ZIGZAG}"
    found = told(
        *(f"{command} --against static:grid" for command in PLANS.values()),
        f"{PLANS['far']} --against static",
        f"{PLANS['near']} --against static:contiguous --against native --json",
        f"plan a.dcpm --mask nothing --sample 'len = 20' {ZIGZAG} --against static:ring "
        "--against static:grid --out nothing.dcpplan",
        f"plan a.dcpm {CAUSAL} {TWO} --model llama-8b --against static:zigzag",
        f"plan a.dcpm {CAUSAL} {TWO} --front",
        f"plan a.dcpm {CAUSAL} {TWO} --front --json",
        f"plan a.dcpm --sample 'len = 8' --mask causal {ZIGZAG} --front",
        f"{rows} --batches 9 --against static:ring --against static:contiguous",
        f"{rows} --batches 2 --batch 1 --against static:ring --json",
        f"{rows} --batches 3 --model gemma-3-12b --heads 4/2/64 --out plans",
        f"{rows} --batch 0 --batches 1 --seed {2**31 - 1} --dtype-bytes 8 --compute-tolerance 0 "
        f"--token-tolerance 0 --divisions 2 --partials input --block {2**32}",
        f"plan a.dcpm --dataset rows.jsonl --tokens 40 {ZIGZAG} --batches 2 --batch 2",
        f"{stack} --against static --out stack.dcpplan",
        f"{stack} --against static:ring --against static:grid --model llama-8b --json",
        f"{rows} --mask mixed --batches 2 --against static:ring --out stacks",
        "COLUMNS=60 plan a.dcpm --mask mixed --sample 'len = 9000' --cluster 1x2 "
        "--backend static:grid",
        f"COLUMNS=60 FORCE_COLOR=1 {rows} --mask mixed --batches 2 --model llama-8b --out stacks",
    )
    for folder in ("plans", "stacks"):
        files = sorted(path.name for path in Path(folder).iterdir())
        found[f"files of {folder}"] = "\n".join(files)
    snapshots.check("plan", found)


def test_results(told, snapshots):
    made = {name: read_plan(f"{name}.dcpplan").plan for name in PLANS}
    cluster = made["far"].cluster
    slow = {"flops_per_s": 2e12, "inter_bytes_per_s": 2.5e8, "kernel_launch_s": 2e-4}
    for name, value in slow.items():
        run_of = replace(made["far"], cluster=replace(cluster, **{name: value}))
        write_plan(f"{name}.dcpplan", made["far"], [as_recorded(simulate(run_of))])
    broken = made["local"]
    pairs = broken.tiles.pairs + (broken.tiles.pairs == 36)
    write_plan("broken.dcpplan", replace(broken, tiles=replace(broken.tiles, pairs=pairs)))
    lies = replace(made["local"].provenance, mask="local(width = 7)")
    write_plan("lies.dcpplan", replace(made["local"], provenance=lies))
    write_plan("bare.dcpplan", replace(made["local"], provenance=None))
    found = told(
        *(f"simulate {name}.dcpplan" for name in PLANS),
        "COLUMNS=60 FORCE_COLOR=1 simulate far.dcpplan",
        "COLUMNS=60 FORCE_COLOR=1 compare far.dcpplan near.dcpplan",
        "COLUMNS=60 FORCE_COLOR=1 simulate far.dcpplan --measured flops_per_s.dcpplan",
        "simulate shared.dcpplan --json",
        "simulate local.dcpplan --cluster h100-dgx:4x8",
        *(f"simulate far.dcpplan --measured {name}.dcpplan" for name in slow),
        "simulate far.dcpplan --measured inter_bytes_per_s.dcpplan --json",
        "simulate far.dcpplan --measured near.dcpplan",
        "simulate far.dcpplan --measured far.dcpplan",
        *(f"why {name}.dcpplan" for name in PLANS),
        "why near.dcpplan --no-try --against far.dcpplan",
        "why tight.dcpplan --json --against near.dcpplan",
        "why local.dcpplan --against far.dcpplan",
        "compare far.dcpplan near.dcpplan",
        "compare near.dcpplan tight.dcpplan --model llama-8b --fail-if makespan>+2% "
        "--fail-if step_s>+50% --fail-if forward_bytes<1e9",
        "compare far.dcpplan far.dcpplan",
        f"plan a.dcpm {CAUSAL.replace('causal', 'local')} {TWO} --heads 2/1/8 --out thin.dcpplan",
        "compare far.dcpplan thin.dcpplan",
        "compare far.dcpplan shared.dcpplan --model llama-8b",
        "compare local.dcpplan far.dcpplan --fail-if forward_inter_bytes>+5% --fail-if makespan<1",
        "compare alone.dcpplan alone.dcpplan --model llama-8b --fail-if makespan>0 --json",
        "validate far.dcpplan broken.dcpplan lies.dcpplan bare.dcpplan rows.jsonl gone.dcpplan",
        "validate far.dcpplan broken.dcpplan",
        "validate broken.dcpplan lies.dcpplan bare.dcpplan gone.dcpplan --json",
    )
    snapshots.check("results", found)


def test_step(told, snapshots):
    plain = "step a.dcpm --mask causal --lengths lengths.json --mesh 2x4 --tokens 32k"
    found = told(
        f"{plain} --against all",
        f"{plain} --steps 1 --out first.dcpstep.json",
        f"{plain} --steps 2 --json --micro-batches 2 --stages 2 --synchronise step",
        f"{plain} --model llama-70b --cluster a100-p4de --even-price 0 --against ffd "
        "--against flexsp",
        "step a.dcpm --dataset rows.jsonl --mask mixed --mesh 1x2 --tokens 60 --against all",
        "step a.dcpm --dataset rows.jsonl --mesh 1x2 --tokens 40",
        "step a.dcpm --dataset rows.jsonl --mesh 4x8 --tokens 60",
    )
    found["first.dcpstep.json"] = short(json.loads(Path("first.dcpstep.json").read_text()))
    snapshots.check("step", found)


def test_help(snapshots):
    snapshots.check("help", help_texts(*COMMANDS))


def test_what_is_refused(told, snapshots):
    data = "plan a.dcpm --dataset rows.jsonl"
    sample = f"plan a.dcpm --sample 'len = 9' --mask causal {ZIGZAG}"
    lengths = "step a.dcpm --mask causal --lengths lengths.json"
    before = sorted(Path().rglob("*"))
    found = told(
        "plan a.dcpm", f"{sample} --block {'8' * 5000}", f"{sample} --dataset rows.jsonl",
        f"{sample} --divisions 1",
        f"{sample} --divisions 1025", f"{sample} --block 0", f"{sample} --block x",
        f"{sample} --heads 8/2", f"{sample} --heads 8/3/4", f"{sample} --heads 8/a/4",
        f"{sample} --batches 1", f"{sample} --batch 0", f"{sample} --tokens 8k",
        f"{sample} --head-groups 257", f"{sample} --out x.txt", f"{sample} --out no/x",
        f"{sample} --out .", f"{sample} --mask locl", f"{sample} --cluster h100",
        f"{sample} --cluster 9999999x8", f"{sample} --sample tny", f"{sample} --sample '{{'",
        "plan . --sample 'len = 3'", "plan no.dcpm --sample 'len = 3'",
        "plan a.dcpm --dataset no.jsonl",
        f"{sample} --sample 'len = 2147483647' --block {2**31}",
        f"{sample} --front --against static", f"{sample} --front --model llama-8b",
        f"{sample} --front --out x.dcpplan", f"{sample} --front --head-groups 2",
        "plan a.dcpm --sample 'len = 9' --mask mixed --front",
        f"{sample} --memory-limit -1", f"{sample} --compute-tolerance -0.1",
        f"{sample} --token-tolerance -0.1", f"{sample} --seed -1", f"{sample} --seed {2**31}",
        f"{sample} --time-limit 0", f"{sample} --dtype-bytes 0", f"{sample} --dtype-bytes 9",
        f"{data} --batches 0", f"{data} --batch -1", f"{sample} --block {2**32 + 1}",
        f"{lengths} --micro-batches 0", f"{lengths} --micro-batches 4097",
        f"{lengths} --micro-batches 4096", f"{lengths} --stages 0", f"{lengths} --stages 1025",
        f"{lengths} --mesh 64x64 --stages 1024", f"{lengths} --steps 0",
        f"{lengths} --even-price 1.1", f"{lengths} --even-price -0.1",
        f"{lengths} --mesh 100000x1", f"{lengths} --mesh 99999x8",
        f"{sample} --memory-limit 0", f"{sample} --model llama", f"{sample} --backend zigzag",
        f"{sample} --against ring", "plan a.dcpm --sample 'len = 9'", f"{data} --tokens 0",
        f"{data} --tokens 3", f"{data} --tokens 8q", f"{data} --tokens 1_00k --batch 7",
        f"{data} --tokens 60 --batch 3", f"{data} --front --batches 2",
        f"{data} --batches 2 --out x.dcpplan", f"{data} --batches 2 --out rows.jsonl",
        f"{data} --batches 4097 --out x", f"{data} --out x.json",
        f"{data} --batches 2 --out x.json", "simulate a.dcpm", "why gone.dcpplan",
        "compare far.dcpplan gone.dcpplan", "compare far.dcpplan near.dcpplan --fail-if speed>1",
        *(f"compare far.dcpplan near.dcpplan --fail-if '{condition}'"
          for condition in ("makespan", "makespan>", "makespan>1;", ">2")),
        "compare far.dcpplan near.dcpplan --fail-if step_s>1",
        lengths.replace(" --lengths lengths.json", ""), f"{lengths} --dataset rows.jsonl",
        f"{lengths} --mesh 8", f"{lengths} --mesh 0x8", f"{lengths} --mesh 8x0",
        f"{lengths} --mesh 3x3", f"{lengths} --mesh 64x64", f"{lengths} --tokens 100",
        f"{lengths} --model llama-7b", f"{lengths} --against wlb", f"{lengths} --out x.json",
        f"{lengths} --cluster cpu-gloo --mesh 1x4", f"{lengths} --cluster two.toml",
        "step a.dcpm --lengths lengths.json", "step a.dcpm --lengths gone.json --mask causal",
        "step a.dcpm --lengths rows.jsonl --mask causal",
    )  # fmt: skip
    assert not [command for command, text in found.items() if "exit" not in text]
    assert sorted(Path().rglob("*")) == before
    found = {name.replace("8" * 5000, "8..."): text.replace("8" * 5000, "8...")
             for name, text in found.items()}  # fmt: skip
    snapshots.check("refused", found)
