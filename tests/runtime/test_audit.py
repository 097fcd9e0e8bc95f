"""`dcpm audit` names what is wrong with a training script, and finds nothing in right ones."""

import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from click.testing import CliRunner
from torch.nn import functional

import dcp_runtime
from dcp_runtime import RunError
from dcp_runtime.auditing.data_checks import check_rows
from dcp_runtime.auditing.observer import Observer
from dcp_runtime.auditing.runs import AuditOrder, audit_script
from dcp_runtime.commands import audit as command

SCRIPTS = Path(__file__).parents[1] / "fixtures" / "audit"
CLEAN = (
    "train.py --recipe packed",
    "train.py --recipe packed --clip 0.1 --accumulate 2",
    "train.py --recipe packed-ddp --accumulate 2 --tied",
    "train.py --recipe packed-fsdp --clip 0.1",
    "train.py --recipe dp",
    "train.py --recipe ddp --dropout 0.3",
    "train.py --recipe cp --tied",
    "train.py --recipe cp --clip 0.05 --accumulate 2 --dropout 0.2",
    "train.py --recipe cp-ddp --clip 1",
    "train.py --recipe cp-fsdp --clip 0.1",
    "trainer.py --kind mixin --accumulate 2 --tied",
    "trainer.py --kind plain",
    "trainer.py --kind plain --uneven",
    "megatron_loop.py",
    "torchtitan_loop.py",
)
WRONG = {  # what is found first, and of how many parameters it is told; None: of none
    "train.py --recipe packed --slip forgotten --clip 0.1": ("parameters", "partial", 27),
    "train.py --recipe packed --slip mean": ("parameters", "averaged", 27),
    "train.py --recipe packed --slip frozen-twice": ("parameters", "doubled", 12),
    "train.py --recipe packed --slip tied-twice --tied": ("parameters", "doubled", 1),
    "train.py --recipe packed --slip labels": ("labels", "across documents", None),
    "train.py --recipe packed --slip drop": ("data", "never seen", None),
    "train.py --recipe packed --slip drop-last": ("data", "never seen", None),
    "train.py --recipe packed --slip drop-micro --accumulate 2": ("data", "never seen", None),
    "train.py --recipe packed --slip accumulation --accumulate 2": (
        "loss", "divided by the targets of each micro-batch", None,
    ),
    "train.py --recipe packed --slip local-tokens": ("loss", "divided by local targets", None),
    "train.py --recipe packed --slip clip-first --clip 0.1": (
        "norm", "clipped before the sum", None,
    ),
    "train.py --recipe packed --slip local-norm --clip 0.1": (
        "norm", "norm of local gradients only", None,
    ),
    "train.py --recipe packed-ddp --slip local-tokens": (
        "loss", "divided by local targets", None,
    ),
    "train.py --recipe packed-fsdp --slip mean": ("parameters", "averaged", 27),
    "train.py --recipe packed-fsdp --slip local-tokens": (
        "loss", "divided by local targets", None,
    ),
    "train.py --recipe packed-fsdp --slip local-norm --clip 0.1": (
        "norm", "norm of local gradients only", None,
    ),
    "train.py --recipe dp --slip forgotten": ("parameters", "partial", 27),
    "train.py --recipe dp --slip sum": ("loss", "divided by local targets", None),
    "train.py --recipe dp --slip seeds": ("ranks", "other weights", 19),
    "train.py --recipe ddp --slip no-sampler": ("data", "seen by every rank", None),
    "train.py --recipe cp --slip forgotten": ("parameters", "partial", 27),
    "train.py --recipe cp --slip mean": ("parameters", "averaged", 27),
    "train.py --recipe cp --slip twice": ("parameters", "doubled", 1),
    "train.py --recipe cp --slip tied-twice --tied": ("parameters", "doubled", 1),
    "train.py --recipe cp --slip local-tokens": ("loss", "divided by local targets", None),
    "train.py --recipe cp --slip labels": ("labels", "shifted", None),
    "train.py --recipe cp --slip drop": ("data", "loaded, not trained", None),
    "train.py --recipe cp --slip zero-grad": ("parameters", "stale", 27),
    "train.py --recipe cp --slip clip-first": ("norm", "clipped before the sum", None),
    "train.py --recipe cp --slip local-norm": ("norm", "norm of local gradients only", None),
    "train.py --recipe cp-ddp --slip mean": ("parameters", "averaged", 27),
    "train.py --recipe cp-fsdp --slip mean": ("parameters", "averaged", 27),
    "trainer.py --kind plain --slip local-tokens": ("loss", "divided by local targets", None),
    "trainer.py --kind plain --slip drop-last": ("data", "never seen", None),
    "trainer.py --kind mixin --slip drop": ("data", "never seen", None),
    "megatron_loop.py --slip tied-twice": ("parameters", "doubled", 1),
    "torchtitan_loop.py --slip mean": ("parameters", "averaged", 15),
}  # fmt: skip
QUICK = {
    CLEAN[0],
    "train.py --recipe packed --slip forgotten --clip 0.1",
    "train.py --recipe packed --slip tied-twice --tied",
    "train.py --recipe packed --slip labels",
    "train.py --recipe packed --slip accumulation --accumulate 2",
    "train.py --recipe packed --slip drop-last",
    "train.py --recipe cp --slip local-norm",
}
pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("forked_audits")]


def cases(lines):
    return [
        pytest.param(line, marks=() if line in QUICK else pytest.mark.slow, id=line)
        for line in lines
    ]


def audit(line, **options):
    script, *words = line.split()
    return audit_script(AuditOrder((str(SCRIPTS / script), *words), timeout_s=250, **options))


@pytest.mark.parametrize("line", cases(CLEAN))
def test_nothing_is_found_in_a_right_script(line):
    found = audit(line)
    assert [each for each in found if each.is_fault] == []
    assert any(each.part == "parameters" and each.kind == "right" for each in found)


def loader(given, *, exhausted=False, batches=6):
    return {
        "of": 0, "batches": batches, "drop_last": False, "rows": [], "exhausted": exhausted,
        "given": [[number] for number in range(given)], "line": "train.py:3",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "trained", "exhausted", "kind", "is_fault"),
    [
        (5, 5, False, "last batch dropped", False),  # a step limit at the end of the loop
        (6, 5, False, "last batch dropped", False),  # the same at its beginning
        (6, 5, True, "loaded, not trained", True),  # the loop goes on without it
        (3, 3, False, None, None),  # an early end
        (6, 6, True, None, None),
    ],
)
def test_a_limit_of_steps_is_told_from_a_batch_that_is_left_out(
    given, trained, exhausted, kind, is_fault
):
    log = {"loaders": [loader(given, exhausted=exhausted)], "seen": list(range(trained))}
    step = SimpleNamespace(micro_batches=[None], is_taken=True)
    found = list(check_rows(SimpleNamespace(logs=[log], has_ended=True, steps=[[step]])))
    assert [(each.kind, each.is_fault) for each in found] == ([(kind, is_fault)] if kind else [])


def test_dropout_inside_attention_is_off(tmp_path):
    q = torch.randn(1, 2, 16, 8)
    attend = lambda: torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)  # noqa: E731
    observer = Observer(tmp_path / "rank-0", 1, lambda: None, is_audit=True)
    observer.watch()
    try:
        watched = attend()
        placed = torch.nn.functional.scaled_dot_product_attention(q, q, q, None, 0.5)
    finally:
        observer.close(has_ended=False)
    right = torch.nn.functional.scaled_dot_product_attention(q, q, q)
    assert torch.equal(watched, right)
    assert torch.equal(placed, right)
    assert not torch.equal(attend(), right)


@pytest.mark.parametrize("line", cases(WRONG))
def test_what_is_wrong_is_named_first(line):
    part, kind, count = WRONG[line]
    first = audit(line)[0]
    assert first.is_fault
    assert (first.part, first.kind) == (part, kind)
    assert first.way_out
    if count is not None:
        assert len(first.names) == count


def test_the_command_prints_what_is_wrong_and_its_line():
    script = Path(__file__).parents[2] / "examples" / "masks" / "forgotten.py"
    result = CliRunner().invoke(command, ["--json", str(script)])
    assert result.exit_code == 1, result.output
    document = json.loads(result.stdout)
    assert document["schema"] == "dcp.audit/1"
    assert document["faults"] == 2  # and ranks that drift apart
    first = document["findings"][0]
    assert first["kind"] == "partial"
    line = script.read_text().splitlines().index("    optimizer.step()") + 1
    assert (
        f"p.grad /= ranks for every p between loss.backward() and forgotten.py:{line}"
        in (first["way_out"])
    )


def test_the_remedy_of_the_page_makes_its_script_right(tmp_path):
    text = (Path(__file__).parents[2] / "examples" / "masks" / "forgotten.py").read_text()
    script = tmp_path / "mended.py"
    mended = (
        "for p in model.parameters():\n        dist.all_reduce(p.grad)\n        p.grad /= ranks"
    )
    script.write_text(text.replace("# Here the gradients of all ranks should be averaged.", mended))
    assert not any(each.is_fault for each in audit_script(AuditOrder((str(script),))))


@pytest.mark.slow
def test_a_loss_of_ones_own_is_wrong_and_right_as_the_page_mends_it(
    tmp_path, monkeypatch, snapshots
):
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    text = Path(__file__).with_name("own_loss.py").read_text(encoding="utf-8")
    (mended,) = re.findall(r"^```python\n( .*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("own_loss.py").write_text(text)
    shown = CliRunner().invoke(command, ["own_loss.py"]).stdout
    snapshots.check("a loss of one's own", {"own_loss.py": shown})
    wrong = "        return functional.cross_entropy(logits, labels)\n"
    Path("own_loss.py").write_text(text.replace(wrong, mended))
    assert CliRunner().invoke(command, ["own_loss.py"]).exit_code == 0


def test_a_script_that_fails_is_shown_with_its_rank(tmp_path):
    script = tmp_path / "fails.py"
    script.write_text("import os\nprint('before')\nraise ValueError('no ' + os.environ['RANK'])\n")
    with pytest.raises(
        RunError, match=r"(?s)rank 0 of 1 failed.*before.*ValueError: no 0.*torchru"
    ):
        audit_script(AuditOrder((str(script),)))


def test_a_script_without_a_step_is_refused(tmp_path):
    script = tmp_path / "idle.py"
    script.write_text("import torch\n")
    with pytest.raises(RunError, match=r"takes a step of a torch optimizer.*got none.*torchrun"):
        audit_script(AuditOrder((str(script),)))


def test_ranks_judge_themselves_from_inside(start_ranks, tmp_path):
    first, second = start_ranks(2, Path(__file__), tmp_path, tmp_path / "records")
    assert second == ""
    right, wrong = first.split("2 ranks, judged by themselves: ")[1:]
    assert right.startswith("no faults\n")
    assert "parameters 3 have the right gradients" in right
    assert wrong.startswith("2 faults\nWRONG parameters partial: 3 of 3")


def train(*, sums):
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Embedding(23, 8), torch.nn.Linear(8, 23))
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randint(0, 23, (2, 3, 11))[dist.get_rank()]
    with dcp_runtime.audit(steps=2):
        for row in rows:
            logits = functional.dropout(model(row[:-1]), 0.3)
            loss = functional.cross_entropy(logits, row[1:], reduction="sum") / 20
            loss.backward()
            if sums:
                dcp_runtime.sum_gradients(model)
            optimizer.step()
            optimizer.zero_grad()
    return model[1].weight.detach().clone()


def main():
    """Be one of two ranks that audit a training from inside it; the folder is the first argument.

    Rank 0 prints what the audits of a right loop, of one without a sum, and of none find.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    unwatched = train(sums=True)
    os.environ["DCP_AUDIT"] = sys.argv[1]
    watched = train(sums=True)
    assert torch.equal(watched, unwatched), "the hook has changed a training"
    dist.barrier()
    train(sums=False)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
