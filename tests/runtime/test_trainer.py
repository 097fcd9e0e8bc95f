"""Hugging Face's trainer under the mixin trains as one dense process does, or refuses in words."""

import json
import re
from collections import defaultdict
from itertools import chain
from pathlib import Path

import pytest
import torch
from trainer_features import FEATURES

SCRIPT = Path(__file__).with_name("trainer_ranks.py")
NEAR = defaultdict(lambda: 2e-4, bf16=2e-2)
"""How far numbers may differ from those of one process, relatively, by run."""


BUDGETS = {"epochs": 44, "skip": 48, "stream": 48}


class Runs:
    """Runs everything, and reads what the processes found."""

    def __init__(self, folder, start_ranks, *names):
        self.folder, self.passed = folder, set()
        start_ranks(4, SCRIPT, folder, folder, *names)

    def of(self, name, process=0):
        return torch.load(self.folder / f"{name}-{process}.pt")

    def check(self, name):
        """Check a run, once for all features that it shows."""
        if name not in self.passed:
            CHECKS.get(name, check_run)(self, name)
            self.passed.add(name)

    def on_ranks(self, name):
        return [torch.load(path) for path in sorted(self.folder.glob(f"{name}-[0-3].pt"))]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, start_ranks):
    return Runs(tmp_path_factory.mktemp("trainer"), start_ranks)


@pytest.mark.dist
@pytest.mark.parametrize(
    "feature", [each for each in FEATURES if each.shown_by != "compile"], ids=lambda f: f.name
)
def test_a_feature_acts_as_in_one_process_or_is_refused_with_a_way_out(feature, runs):
    if feature.status == "refused":
        words, others = (runs.of("refusals", rank)[feature.name] for rank in (0, 1))
        assert re.search(rf"^DCPTrainerMixin: .*{feature.refusal}", words), words
        # A term that a model adds is that of the rank's own tokens.
        assert re.sub(r"adds [\d.]+", "", others) == re.sub(r"adds [\d.]+", "", words)
    runs.check(feature.shown_by)


@pytest.mark.dist
def test_every_refusal_is_a_feature(runs):
    refused = [feature.name for feature in FEATURES if feature.status == "refused"]
    assert sorted(runs.of("refusals")) == sorted(refused)


@pytest.mark.dist
@pytest.mark.slow
def test_a_compiled_model_trains_as_one_process_does(tmp_path, start_ranks):
    check_run(Runs(tmp_path, start_ranks, "compile"), "compile")


def check_run(runs, name):
    """Compare the ranks with Hugging Face's trainer in one process: its log and its weights."""
    wanted = runs.of(name, "alone")
    for got in runs.on_ranks(name):
        assert_near(name, got["logs"], wanted["logs"])
        assert got["loss"] == pytest.approx(wanted["loss"], rel=NEAR[name])
        assert (got["steps"], got["tokens"]) == (wanted["steps"], wanted["tokens"])
        assert_same_weights(name, got["weights"], wanted["weights"])


def assert_near(name, logs, wanted):
    assert len(logs) == len(wanted)
    for log, wanted_log in zip(logs, wanted, strict=True):
        assert log == pytest.approx(wanted_log, rel=NEAR[name])


def assert_same_weights(name, got, wanted):
    torch.testing.assert_close(dict(got), dict(wanted), rtol=NEAR[name], atol=NEAR[name] / 10)


def check_replicas(runs, name):
    """Compare as `check_run` does; the executor has the log that the page gives it."""
    check_run(runs, name)
    trained = [f"epoch 0, batch {number}" for number in range(2)]
    for file in ("run.dcprun.jsonl", "run-2.dcprun.jsonl"):  # of two replicas
        lines = (runs.folder / "runs" / "today" / file).read_text().splitlines()
        names = [record["name"] for record in map(json.loads, lines) if "name" in record]
        assert names == [*trained, "evaluation, epoch 0, batch 0", "evaluation, epoch 0, batch 1"]


def check_loop(runs, name):
    """Compare the ranks with a loop written out over the rows of each epoch."""
    wanted, (first, *others) = runs.of(name, "alone"), runs.on_ranks(name)
    check_rows(name, first["rows"])
    losses = [log["loss"] for log in wanted["logs"] if "loss" in log]
    for got in (first, *others):
        assert got["rows"] == first["rows"]
        logs = [{key: log[key] for key in log if key != "epoch"} for log in got["logs"][:-1]]
        assert_near(name, logs, wanted["logs"])
        assert got["loss"] == pytest.approx(sum(losses) / len(losses), rel=NEAR[name])
        assert_same_weights(name, got["weights"], wanted["weights"])
    assert max(log.get("grad_norm", 0) for log in wanted["logs"]) > 0.5, "gradients were clipped"


def check_rows(name, epochs):
    """Every epoch takes all rows once, packed in order, in steps of two batches and a last one."""
    data = trained_rows({"epochs": "all", "skip": "unfit"}.get(name, name))
    counts = []
    for number, steps in enumerate(epochs):
        taken = list(chain.from_iterable(steps))
        counts.append(len(taken))
        in_order = list(chain.from_iterable(taken)) if name == "epochs" else range(len(data))
        assert sorted(in_order) == list(range(len(data)))
        packs = packed(in_order, BUDGETS[name], lambda row: len(data[row]["tokens"]))
        fitting = [tuple(row for row in pack if fits(data[row])) for pack in packs]
        wanted = [pack for pack in fitting if pack]
        if (name, number) == ("stream", len(epochs) - 1):  # where max_steps ends it
            wanted = wanted[: len(taken)]
        assert taken == wanted
        assert [len(step) for step in steps[:-1]] == [2] * (len(steps) - 1)
    assert any(count % 2 for count in counts), "an epoch ends within a step"
    assert len(set(counts)) > 1 or name == "skip", counts


def check_resumed(runs, _):
    """The step behind each checkpoint leaves the checkpoint that the whole run left."""
    for name in ("epochs", "skip", "stream"):
        steps = list(chain.from_iterable(runs.of(name)["rows"]))
        for step in range(1, 3 if name == "stream" else len(steps)):
            resumed = runs.of(f"{name}-{step}")
            assert resumed["rows"][-1] == [steps[step]]
            # The pack behind an epoch's last batch fits its mask nowhere, which planning it tells.
            unfit = int(name == "skip" and len(steps[step]) == 1)
            assert resumed["plans"] == len(steps[step]) + unfit
            again, once = (
                runs.folder / folder / f"checkpoint-{step + 1}"
                for folder in (f"{name}-{step}", name)
            )
            for file in ("optimizer.pt", "scheduler.pt"):
                assert_equal(torch.load(again / file), torch.load(once / file))
            assert_equal(weights_of(again), weights_of(once))
            assert state_of(again) == state_of(once)


def weights_of(checkpoint):
    from safetensors.torch import load_file

    return load_file(checkpoint / "model.safetensors")


def assert_equal(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-7)


def state_of(checkpoint):
    """Return the trainer's state without times, and without what a test's callback did."""
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    state["stateful_callbacks"].pop("TrainerControl")
    for log in state["log_history"]:
        for key in [key for key in log if key.endswith(("_runtime", "_per_second"))]:
            del log[key]
    return state


def check_anew(runs, _):
    """Under `ignore_data_skip` the epoch of the checkpoint begins anew."""
    before, within, _ = runs.of("epochs")["rows"]
    assert len(before) < 4 < len(before) + len(within), "the checkpoint lies inside an epoch"
    assert runs.of("epochs-4-ignore_data_skip")["rows"] == [[within[0]]]


def check_regrouped(runs, _):
    """A resumed run takes the next batches, however many make a step now."""
    _, (_, second), _ = runs.of("epochs")["rows"]
    assert runs.of("epochs-4-gradient_accumulation_steps")["rows"] == [[second[:1]]]


def check_within(runs, name):
    """A checkpoint behind the first of two steps is followed by the second one."""
    _, second = runs.of("twice")["rows"][0]
    assert runs.of(name)["rows"] == [[second]]


def check_next(runs, _):
    """What an epoch's end does, an evaluation for example, is not done again by a resumed run."""
    whole, again = runs.of("next")["logs"]
    assert sum("eval_a_loss" in log for log in whole) == 2
    assert_near("next", again[:-1], whole[:-1])


def check_twice(runs, _):
    """The second training takes the rows of the first; evaluations before and after are right."""
    for found in runs.on_ranks("twice"):
        first, second = found["rows"]
        assert first == second
        assert found["next epoch"] == 1, "every evaluation takes the batches of epoch 0"
        for loss, wanted in found["losses"]:
            assert loss == pytest.approx(wanted, rel=2e-4)


def check_other_attention(runs, _):
    """Rows are evaluated and predicted under another attention as in one process."""
    for found in runs.on_ranks("rows"):
        for number, wanted in found["numbers"]:
            assert number == pytest.approx(wanted, rel=1e-5)
        torch.testing.assert_close(*found["logits"], rtol=1e-4, atol=1e-5)


CHECKS = {
    "epochs": check_loop, "skip": check_loop, "stream": check_loop, "resumed": check_resumed,
    "anew": check_anew, "twice": check_twice, "rows": check_other_attention,
    "replicas": check_replicas, "next": check_next, "regrouped": check_regrouped,
    "step": check_within, "stopped": check_within,
}  # fmt: skip


# The rows of the runs


def trained_rows(kind):
    """Return the rows of a run: all, some that do not fit their mask as well, or some of all."""
    found = rows()
    if kind in ("few", "stream"):
        return found[: 4 if kind == "few" else 5]
    if kind == "unfit":  # the second fills a pack
        wrong = [{**found[n], "answers": [1]} for n in (1, 3)]
        wrong[1] |= {name: (2 * found[3][name])[:45] for name in ("tokens", "labels")}
        return [*found[:3], wrong[0], *found[3:5], wrong[1]]
    return found


def fits(row):
    return row["question"] + sum(row["answers"]) == len(row["tokens"])


def evaluated_rows(name):
    """Return rows for an evaluation; in batches of those of "a" every batch has as many targets."""
    if name == "b":
        return rows()[:3]
    generator = torch.Generator().manual_seed(4)
    return [row_of(5, [4 + number, 11 - number], generator) for number in range(4)]


def rows():
    """Return rows with labels; the loader leaves out targets that do not see the token before."""
    generator = torch.Generator().manual_seed(3)
    answers = [[4 + number % 5, 3 + number * 7 % 11] for number in range(8)]
    return [row_of(5, lengths, generator) for lengths in answers]


def row_of(question, answers, generator):
    length = question + sum(answers)
    tokens = torch.randint(0, 50, (length,), generator=generator).tolist()
    labels = [-100] * (question - 1) + tokens[question - 1 :]
    return {"tokens": tokens, "labels": labels, "question": question, "answers": answers}


def packed(data, budget, length=lambda row: len(row["tokens"])):
    """Pack rows in order: a pack ends where the next row does not fit."""
    packs = [[]]
    for row in data:
        if sum(map(length, [*packs[-1], row])) > budget:
            packs.append([])
        packs[-1].append(row)
    return packs
