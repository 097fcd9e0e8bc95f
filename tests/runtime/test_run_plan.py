"""Plans run by a world whose one process is this one: results, figures, failures, signs of life."""

import io
import json
import threading
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dcp_dsl import DCPError
from dcp_planner.plan import encode_plan
from dcp_planner.simulation import EVENT_KINDS
from dcp_planner.tables import Attention, CommWait, measure_memory
from dcp_runtime import RunConfig, RunError, open_world, run_plan
from dcp_runtime.errors import PeerError
from dcp_runtime.launch import launcher, worker
from dcp_runtime.transport.loopback import LoopbackTransport
from dcp_runtime.transport.recorder import Activity, Recorder

RANKS = 2


@pytest.fixture
def plan(lab):
    return lab.plan_of([("causal", 50), ("blind_rows", 30)], RANKS)


@pytest.fixture(scope="module")
def alone(lab):
    return lab.plan_of([("causal", 20)], heads=(2, 1, 8))


class Here:
    """A world whose ranks are threads of this process."""

    def __init__(self, ranks, transport="loopback"):
        self.ranks, self.transport, self.notes = ranks, transport, []
        self.answer = worker.start("0", "1", "60", transport, "-1")

    def run(self, job, blob=b""):
        answer = self.answer(json.loads(json.dumps(job)), blob, self.notes.append)
        if "failure" in answer[0]:
            raise RunError(**{k: v for k, v in answer[0]["failure"].items() if k != "is_own"})
        return [answer]


@pytest.fixture(autouse=True)
def garbage(monkeypatch):
    """Return what a worker asks of the collector, which a test must not be told."""
    told = []
    stand_in = SimpleNamespace(
        collect=lambda: told.append("collect"), freeze=lambda: told.append("freeze")
    )
    monkeypatch.setattr(worker, "gc", stand_in)
    return told


@pytest.mark.parametrize(
    "options",
    [
        {"layers": 2, "warmup": 1},
        {"dtype": "bfloat16", "kernel": "reference"},
        {"dtype": "float64", "overlap": False, "seed": 3},
    ],
)
def test_what_a_run_says_of_itself(plan, garbage, options):
    config, world = RunConfig(RANKS, transport="loopback", verify=True, **options), Here(RANKS)
    result = run_plan(plan, config, world)
    assert result.verified, result.errors
    assert [e.tensor for e in result.errors] == ["out", "dq", "dk", "dv"]
    assert result.mask_source == "slabs"
    unit = {"bfloat16": 2**-8, "float64": 2**-50}.get(config.dtype, 2**-24)
    assert all(unit / 8 < e.relative < 16 * unit for e in result.errors)
    trace, kinds = result.trace, [EVENT_KINDS[kind] for kind in result.trace.kind]
    attends = np.array(kinds) == "attention"
    assert attends.sum() == config.layers * (  # one for each division and rank, of the last pass
        len(np.unique([plan.tiles.device, plan.tiles.division], axis=1).T)
        + len(np.unique([plan.tiles.device, plan.tiles.backward_division], axis=1).T)
    )
    assert result.seconds == (trace.end_ns.max() - trace.start_ns.min()) / 1e9
    for seconds, chosen in (
        (result.forward_s, ~trace.is_backward), (result.backward_s, trace.is_backward),
    ):  # fmt: skip
        assert seconds == (trace.end_ns[chosen].max() - trace.start_ns[chosen].min()) / 1e9
    took, waits = trace.end_ns - trace.start_ns, np.array(kinds) == "wait"
    stood = [took[waits & (trace.device == rank)].sum() / 1e9 for rank in range(RANKS)]
    assert result.exposed_s == pytest.approx(max(stood))
    assert result.sent_bytes == trace.size_bytes[np.array(kinds) == "send"].sum() > 0
    assert result.kernels == (config.kernel or "cpu",) * RANKS
    assert result.clock_uncertainty_s == 0
    assert 0 < result.prepare_s < 100
    assert garbage == ["collect", "freeze"]
    assert world.notes[0] == {"steps": 0, "doing": None}


def test_a_run_without_verification_brings_no_tensors(plan):
    world = Here(RANKS)
    config = RunConfig(RANKS, transport="loopback")
    result = run_plan(plan, config, world)
    assert (result.verified, result.errors, result.mask_source) == (None, (), None)
    ((_, blob),) = world.run({"config": asdict(config)}, encode_plan(plan))
    with np.load(io.BytesIO(blob)) as arrays:
        names = {f"{rank}/{name}" for rank in range(RANKS) for name in ("prepare_s", "kernel")}
        assert set(arrays) == names | {"trace", "clock_uncertainty_s"}


def test_errors_follow_the_seed(alone):
    first, again, other = (
        run_plan(alone, RunConfig(1, transport="loopback", verify=True, seed=n), Here(1)).errors
        for n in (1, 1, 2)
    )
    assert first == again != other


def test_a_result_that_is_off_is_not_verified(alone, monkeypatch):
    right = launcher._join_tensors

    def wrong(*arguments):
        layers = right(*arguments)
        layers[1]["dq"][3] *= 1.001
        return layers

    monkeypatch.setattr(launcher, "_join_tensors", wrong)
    config = RunConfig(1, transport="loopback", verify=True, layers=2)
    result = run_plan(alone, config, Here(1))
    assert not result.verified
    assert [error.tensor for error in result.errors if not error.ok] == ["dq"]


def test_tensors_of_all_ranks_come_together_in_packed_order(plan):
    found = {}
    for rank in range(RANKS):
        tokens = plan.local_tokens(rank).astype(np.float32)[:, None]
        for n, (layer, key) in enumerate((n, k) for n in (0, 1) for k in ("out", "dq", "dkv")):
            found[f"{rank}/{key}{layer}"] = tokens + 1000 * n
    whole = launcher._join_tensors(plan, found, 2)
    wanted = torch.arange(80.0)[:, None]
    for layer in (0, 1):
        for n, key in enumerate(("out", "dq", "dkv")):
            assert torch.equal(whole[layer][key], wanted + 1000 * (3 * layer + n))
    rows = plan.local_tokens(1)
    found["1/out0"] = np.full((len(rows), 1), np.nan, np.float32)  # a token that nobody computed
    lost = launcher._join_tensors(plan, found, 1)[0]["out"]
    assert torch.isnan(lost).flatten().nonzero()[:, 0].tolist() == sorted(rows.tolist())


@pytest.mark.parametrize(
    ("options", "wider"),
    [({}, 1), ({"dtype": "bfloat16"}, 1), ({"dtype": "float64"}, 2), ({"layers": 3}, 3)],
)
def test_a_plan_that_fills_memory_to_the_last_byte_runs_and_a_larger_one_does_not(
    plan, monkeypatch, options, wider
):
    config = RunConfig(RANKS, **options)
    needed = wider * int(measure_memory(plan).peak.sum()) + 80 * 4 * 8 * 8
    monkeypatch.setattr(launcher, "machine_bytes", lambda: needed)
    launcher.check_memory(plan, config)
    monkeypatch.setattr(launcher, "machine_bytes", lambda: needed - 1)
    with pytest.raises(RunError, match=r"this machine's 0 GB, got one that needs 0 GB on 2"):
        launcher.check_memory(plan, config)
    launcher.check_memory(plan, replace(config, device="cuda"))


def test_a_machine_has_its_pages(monkeypatch):
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)
    assert launcher.machine_bytes() == 40_960


def test_a_world_of_another_kind_is_refused(alone):
    for world in (Here(2), Here(1, "gloo")):
        says = f"the world has {world.ranks} ranks on {world.transport}, 1 on loopback were asked"
        with pytest.raises(RunError, match=says):
            run_plan(alone, RunConfig(1, transport="loopback"), world)


def test_a_run_without_a_world_opens_one_as_configured(alone, monkeypatch):
    opened = []

    @contextmanager
    def started(*arguments):
        opened.append(arguments)
        yield Here(1)
        opened.append("ended")

    monkeypatch.setattr(launcher, "open_world", started)
    monkeypatch.setattr(launcher, "MAX_DENSE_TOKENS", 20)  # as long as the sequence
    config = RunConfig(1, transport="loopback", timeout_s=7.0, verify=True)
    assert run_plan(alone, config).verified
    assert opened == [(1, 7.0, "loopback"), "ended"]
    monkeypatch.setattr(launcher, "MAX_DENSE_TOKENS", 19)
    with pytest.raises(RunError, match="up to 19 tokens, this plan has one of 20"):
        run_plan(alone, config)


def test_a_world_is_opened_with_its_limits(monkeypatch):
    closed = []

    @contextmanager
    def opened(*place):
        yield place
        closed.append(place)

    monkeypatch.setattr(launcher, "ProcessWorld", opened)
    with open_world(3) as world:
        assert world == (3, 60.0, "gloo")
    with open_world(2, 5.0, "nccl") as world:
        assert world == (2, 5.0, "nccl")
    assert closed == [(3, 60.0, "gloo"), (2, 5.0, "nccl")]


def test_the_options_of_a_run_by_default():
    assert asdict(RunConfig(2)) == {
        "ranks": 2, "kernel": None, "dtype": "float32", "seed": 0, "verify": False,
        "timeout_s": 60.0, "layers": 1, "transport": "gloo", "device": "cpu",
        "check_finite": False, "overlap": True, "warmup": 0,
    }  # fmt: skip


def test_blocks_travel_as_configured(alone, monkeypatch):
    told, world_of = [], worker.LoopbackWorld

    def make_world(*arguments, **options):
        told.append((*arguments, options))
        return world_of(*arguments)

    monkeypatch.setattr(worker, "make_transport", lambda *given: given)
    monkeypatch.setattr(worker, "LoopbackWorld", make_world)
    monkeypatch.setattr(worker, "_select_gpu", lambda config: told.append("GPU"))
    monkeypatch.setattr(worker, "_run_rank", lambda *arguments: {"told": arguments})
    recorders = []
    for config in (RunConfig(1), RunConfig(1, transport="nccl", device="cuda")):
        found = worker.run_job(config, alone, 4.0, recorders)
        assert found == {"told": ((None, 4.0, config.transport), config, alone, recorders)}
    found = worker.run_job(RunConfig(1, transport="loopback"), alone, 4.0, recorders)
    assert type(found["told"][0]) is LoopbackTransport
    assert told == ["GPU", (1, 4.0, {"lockstep": True})]


@pytest.mark.parametrize("overlap", [True, False])
def test_an_executor_is_made_as_configured_and_closed(alone, monkeypatch, overlap):
    told, executor = [], worker.DCPExecutor

    def make(transport, **options):
        told.append(("wait" in vars(transport), options))
        made = executor(transport=transport, **options)
        close = made.close
        monkeypatch.setattr(made, "close", lambda: (told.append("closed"), close()))
        return made

    monkeypatch.setattr(worker, "DCPExecutor", make)
    config = RunConfig(1, transport="loopback", overlap=overlap, kernel="cpu", check_finite=True)
    worker.run_job(config, alone, 60, [])
    assert told == [(not overlap, {"kernel": "cpu", "check_finite": True}), "closed"]


def test_every_pass_is_watched_and_the_last_one_kept(alone, monkeypatch):
    seconds = iter((10.0, 10.5, 20.0, 21.5, 30.0, 34.0))
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    recorders = []
    config = RunConfig(1, transport="loopback", warmup=2)
    found = worker.run_job(config, alone, 60, recorders)
    assert len({id(each) for each in recorders}) == 3
    assert found["0/prepare_s"] == 4.0


@pytest.mark.parametrize(
    ("transport", "rank", "chosen"), [("loopback", 5, 0), ("gloo", 2, 2), ("nccl", 5, 1)]
)
def test_ranks_go_round_the_gpus(monkeypatch, transport, rank, chosen):
    config, told = RunConfig(8, transport=transport, device="cuda"), []
    monkeypatch.setattr(worker.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", told.append)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    worker._select_gpu(config)
    assert told == [chosen]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RunError, match="device 'cuda' was asked for, and torch finds none"):
        worker._select_gpu(config)


def _failed(cause):
    error = RunError("lost contact")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "place", "is_own"),
    [
        (RunError("no such kernel"), (None, None), True),
        (DCPError("of the language"), (None, None), True),
        (RunError("rank 2 differs", rank=2, division=1), (2, 1), False),
        (PeerError("rank 0 is dead", rank=0, division=0), (0, 0), False),
        (_failed(RuntimeError("gloo")), (None, None), False),
        (_failed(ValueError("a bad value")), (None, None), True),
    ],
)
def test_a_rank_says_whether_a_failure_is_its_own(error, place, is_own):
    assert worker._failure(error) == {
        "message": str(error), "rank": place[0], "division": place[1], "is_own": is_own,
    }  # fmt: skip


def test_a_job_that_fails_is_answered(alone):
    with pytest.raises(RunError, match="flesh"):
        run_plan(alone, RunConfig(1, kernel="flesh", transport="loopback"), Here(1))


def test_a_process_joins_its_world_once_and_measures_rings(monkeypatch):
    told = []
    monkeypatch.setattr(worker, "_join", lambda *given: told.append(given))
    monkeypatch.setattr(worker.dist, "is_initialized", lambda: bool(told))
    monkeypatch.setattr(worker, "measure_ring", lambda *arguments, **ring: [arguments, ring])
    world = worker.start("3", "4", "2.5", "nccl", "17")
    ring = {"sizes": [1], "counts": [2], "repeats": 3}
    for _ in range(2):
        assert world({"ring": ring}, b"", lambda note: None) == ({"ring": [("nccl",), ring]}, b"")
    assert told == [(3, 4, 2.5, "nccl", "/proc/self/fd/17")]

    lost = Mock(side_effect=RuntimeError("Connection closed by peer"))
    monkeypatch.setattr(worker, "measure_ring", lost)
    message = "lost contact with another rank while running: until its connection broke"
    failure = {"message": message, "rank": None, "division": None, "is_own": False}
    assert world({"ring": ring}, b"", lambda note: None) == ({"failure": failure}, b"")


def test_progress_counts_every_step_and_names_who_computes():
    ranks = [Recorder(0, is_on=True), Recorder(1, is_on=True)]
    ranks[0].begin(Activity(CommWait(0, 1), 1, "forward"))
    assert worker.progress_of(ranks) == {"steps": 1, "doing": None}  # who waits is not to blame
    ranks[1].begin(Activity(Attention(2, (0,)), 2, "forward"))
    assert worker.progress_of(ranks) == {
        "steps": 2, "doing": "attention in division 2 of forward", "division": 2, "rank": 1,
    }  # fmt: skip
    ranks[1].begin(None)
    assert worker.progress_of(ranks) == {"steps": 3, "doing": None}


def test_a_run_checks_for_what_is_not_finite_only_if_asked(alone, monkeypatch):
    spoilt = worker.random_inputs(alone, alone.local_blocks(0).tolist(), 0, 0, torch.float32)
    spoilt.q[3] = torch.nan
    monkeypatch.setattr(worker, "random_inputs", lambda *_: spoilt)
    found = worker.run_job(RunConfig(1, transport="loopback", verify=True), alone, 60, [])
    assert np.isnan(found["0/out0"][3]).all()
    with pytest.raises(RunError, match=r"16 values that are not finite.*at local token 3"):
        worker.run_job(RunConfig(1, transport="loopback", check_finite=True), alone, 60, [])


@pytest.mark.parametrize(
    ("gloo", "said"),
    [
        ("[/src/buffer.cc:78] Timed out waiting 1ms for recv operation", "0.5 s long"),
        ("[/src/pair.cc:5] Connection closed by peer", "until its connection broke"),
        ("something\nelse", "something"),
    ],
)
def test_a_collective_that_fails_is_said_in_words(gloo, said):
    with (
        pytest.raises(RunError, match=f"^lost contact with another rank while starting: {said}$"),
        worker._collective("starting", 0.5),
    ):
        raise RuntimeError(gloo)


@pytest.mark.parametrize(("has_nccl", "devices"), [(True, 1), (False, 8)])
def test_nccl_needs_a_device_for_each_rank(monkeypatch, has_nccl, devices):
    monkeypatch.setattr(worker.dist, "is_nccl_available", lambda: has_nccl)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    found = devices if has_nccl else 0
    with pytest.raises(RunError, match=f"for each of the 2 ranks, torch finds {found}; use"):
        worker._join(0, 2, 1.0, "nccl", "store")


@pytest.mark.parametrize(
    ("transport", "backend"), [("gloo", "gloo"), ("nccl", "cpu:gloo,cuda:nccl")]
)
def test_ranks_meet_in_the_file_of_their_world(monkeypatch, transport, backend):
    monkeypatch.setattr(worker.dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(worker, "FileStore", lambda *place: place)
    join = Mock()
    monkeypatch.setattr(worker.dist, "init_process_group", join)
    worker._join(1, 2, 5.0, transport, "the store")
    place = {"rank": 1, "world_size": 2, "timeout": timedelta(seconds=5)}
    join.assert_called_once_with(backend, store=("the store", 2), **place)


def test_signs_of_life_go_on_until_the_job_is_over(monkeypatch):
    monkeypatch.setattr(worker, "HEARTBEAT_S", 0.001)
    beats, enough = [], threading.Event()

    def tell(note):
        beats.append(note)
        if len(beats) == 3:
            enough.set()

    before = threading.active_count()
    with worker._heartbeat([], tell):
        assert enough.wait(60)
        (thread,) = [each for each in threading.enumerate() if each.name == "heartbeat"]
        assert thread.daemon
    assert threading.active_count() == before
    assert beats[0] == {"steps": 0, "doing": None}


class Ring:
    """The part of ``torch.distributed`` that a ring takes, for rank 1 of 3; a clock of its own."""

    irecv, isend = "irecv", "isend"

    def __init__(self, took_s):
        self.now, self.took_s, self.told, self.posted = 0.0, iter(took_s), [], []

    get_rank = staticmethod(lambda: 1)
    get_world_size = staticmethod(lambda: 3)

    def P2POp(self, operation, tensor, peer, tag):
        return operation, len(tensor), str(tensor.dtype), peer, tag

    def barrier(self):
        self.now += 100.0
        self.told.append("barrier")

    def batch_isend_irecv(self, operations):
        self.posted.append(operations)
        return [self]

    def wait(self):
        self.now += next(self.took_s)
        self.told.append("wait")


@pytest.mark.parametrize("transport", ["gloo", "nccl"])
def test_a_ring_takes_the_median_of_warm_rounds(monkeypatch, transport):
    ring, chosen, zeros = Ring([50.0, 40.0, 3.0, 1.0, 2.0] * 4), [], torch.zeros
    monkeypatch.setattr(worker, "dist", ring)
    monkeypatch.setattr(worker, "time", SimpleNamespace(perf_counter=lambda: ring.now))
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: ring.told.append("done"))
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: zeros(size, dtype=dtype))
    found = worker.measure_ring(transport, [8, 64], [1, 2], 3)
    assert found == [
        {"size_bytes": size, "count": n, "seconds": 2.0} for size in (8, 64) for n in (1, 2)
    ]
    is_cuda = transport == "nccl"
    assert ring.told == ["barrier", "wait", *["done"] * is_cuda] * 20
    assert chosen == ["cuda:1"] * is_cuda
    assert ring.posted[5] == [
        ("irecv", 8, "torch.uint8", 0, 0), ("irecv", 8, "torch.uint8", 0, 1),
        ("isend", 8, "torch.uint8", 2, 0), ("isend", 8, "torch.uint8", 2, 1),
    ]  # fmt: skip
