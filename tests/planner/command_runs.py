"""A spec and small plans, and commands run in this process, for the tests of the commands."""

from click.testing import CliRunner

from dcp_planner import PlanConfig
from dcp_planner.commands.plan import plan as plan_command

SPEC = """dcpm 1
mask local(width: tokens = 8) = causal and q - k < width
for "*/rows.jsonl" use local(width = 5)
segment doc = [doc_lens]*
sample tiny(doc_lens = [20, 30])
"""
SMALL = ("--block-size", "8", "--cluster", "1x2", "--backend", "static:zigzag")
CONFIG = PlanConfig(partitioner="static:zigzag")


def run(command, *arguments):
    return CliRunner().invoke(command, [str(a) for a in arguments])


def planned(folder, *arguments):
    out = folder / "x.dcpplan"
    result = run(plan_command, folder / "a.dcpm", *SMALL, *arguments, "--out", out)
    return result, out
