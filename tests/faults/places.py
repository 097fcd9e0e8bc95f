"""Places where a fault can strike, each with what must hold afterwards.

A place is set up in a folder of its own, acted in a fork of the campaign while the fault is armed,
and judged by the campaign once the fork has ended, been killed or stopped. `act` returns what came
of it in a word or two; anything it raises is an aborted run. `judge` raises on a torn file.
"""

import http.client
import importlib
import io
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import (
    AbstractContextManager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numba

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))
from loader_options import make_loader

from dcp_dashboard import start_server
from dcp_dashboard.editing import routes
from dcp_dsl import DCPError, Sample, Spec
from dcp_dsl.cli import main as dcpm
from dcp_planner import (
    Cluster,
    ModelShape,
    Plan,
    PlanConfig,
    build_plan,
    digest,
    read_plan,
    simulate,
    write_plan,
)
from dcp_planner.batches.batch import batch_of_samples
from dcp_planner.batches.report_file import read_batches
from dcp_planner.workers import worker as worker_module
from dcp_runtime.data import plan_sources

Armed = Callable[[], AbstractContextManager[None]]
FILE_CALLS = ("open", "read", "write", "rename", "mkdir")
LIMIT_S = 15.0
"""Time limits of workers while something is stopped; one that is not answers sooner."""


@cache
def plans() -> tuple[Plan, Plan]:
    """Two plans that are not the same."""
    spec = Spec.from_text("mask m = causal")
    found = []
    for tokens in (96, 128):
        (batch,) = batch_of_samples(spec, spec.mask("m"), [Sample({}, tokens)], 16)
        config = PlanConfig(partitioner="static:zigzag")
        found.append(build_plan(batch.sparsity, ModelShape(2, 1, 8, 4), Cluster(1, 2), config))
    return found[0], found[1]


@dataclass(frozen=True)
class Place:
    """A place with a folder of its own, and the calls that are hit there."""

    folder: Path
    name: ClassVar[str]
    calls: ClassVar[tuple[str, ...]] = FILE_CALLS
    worker: ClassVar[bool] = False
    may_lose_files: ClassVar[bool] = False
    """Whether the process can do without any further file; else only the calls here get none."""
    points: ClassVar[tuple[int, ...]] = tuple(range(40))
    """Calls before the one that is hit; those beyond the last call hit nothing."""

    paths: ClassVar[str] = "{}*"
    """Paths that are hit, with the folder at the braces; sockets have words."""

    @property
    def pattern(self) -> str:
        return self.paths.format(self.folder)

    @property
    def vanishing(self) -> Path:
        """The folder that vanishes."""
        return self.folder

    def kept(self, pattern: str) -> list[Path]:
        """Files that are there, or have vanished with their folder."""
        folders = self.folder, Path(f"{self.folder}.gone")
        return [path for folder in folders for path in folder.glob(pattern)]

    def set_up(self) -> None:
        """Make what must be there before."""

    def act(self, armed: Armed) -> str:
        """Do it with the fault armed."""
        raise NotImplementedError

    def judge(self) -> None:
        """Raise if a file is torn."""


class PlanWrite(Place):
    """A plan takes the place of an older one."""

    name = "plan write"

    @property
    def target(self) -> Path:
        return self.folder / "a.dcpplan"

    def set_up(self) -> None:
        write_plan(self.target, plans()[0])

    def act(self, armed: Armed) -> str:
        with armed():
            try:
                write_plan(self.target, plans()[1])
            except (DCPError, MemoryError) as error:
                outcome = f"refused ({type(error).__name__})"
            else:
                outcome = "written"
        if outcome == "written":
            assert digest(read_plan(self.target).plan) == digest(plans()[1])
        drafts = [path.name for path in self.folder.glob(".*.tmp")]
        assert not drafts, f"left behind: {drafts}"
        return outcome

    def judge(self) -> None:
        for found in self.kept(self.target.name):
            assert digest(read_plan(found).plan) in map(digest, plans())


class _Command(Place):
    def run(self, armed: Armed, *arguments: str) -> str:
        sys.argv = ["dcpm", *map(str, arguments)]
        said, status = io.StringIO(), None
        with redirect_stderr(said), redirect_stdout(io.StringIO()), armed():
            try:
                dcpm()
            except SystemExit as end:
                status = end.code
            except MemoryError:
                return "refused (MemoryError)"
        if not status:
            return "written"
        assert "Traceback" not in said.getvalue(), said.getvalue()
        assert "dcpm: " in said.getvalue(), "the command said nothing"
        return "refused (message)"


class TraceWrite(_Command):
    """`dcpm run --trace` writes what it measured over an older file."""

    name = "trace write"
    points = tuple(range(8))

    @property
    def source(self) -> Path:
        return self.folder.with_suffix(".source") / "a.dcpplan"

    @property
    def target(self) -> Path:
        return self.folder / "t.dcpplan"

    def set_up(self) -> None:
        self.source.parent.mkdir()
        write_plan(self.source, plans()[0])
        write_plan(self.target, plans()[0], [simulate(plans()[0])])

    def act(self, armed: Armed) -> str:
        options = ["--transport", "loopback", "--trace", self.target]
        return self.run(armed, "run", self.source, *options)

    def judge(self) -> None:
        for found in self.kept(self.target.name):
            assert read_plan(found).traces


class RunLog(_Command):
    """`dcpm plan --batches` writes plans and, after each, their report."""

    name = "run log"
    points = (*range(4), 6, 10, 20, 40)

    def set_up(self) -> None:
        self.folder.with_suffix(".dcpm").write_text('mask m = causal\nfor "*" use m\n')
        rows = "".join(json.dumps({"length": n}) + "\n" for n in (60, 50, 40))
        self.folder.with_suffix(".jsonl").write_text(rows)

    def act(self, armed: Armed) -> str:
        options = ["--tokens", "64", "--batches", "3", "--cluster", "1x2", "--out", self.folder]
        options += ["--backend", "static:zigzag", "--block", "16"]
        spec, data = (self.folder.with_suffix(end) for end in (".dcpm", ".jsonl"))
        return self.run(armed, "plan", spec, "--dataset", data, *options)

    def judge(self) -> None:
        for path in self.kept("*.dcpplan"):
            read_plan(path)
        for path in self.kept("*.dcpbatches.json"):
            names = [batch["file"] for batch in read_batches(path)["batches"]]
            assert all(name is None or self.kept(name) for name in names)


KERNEL = """
from dcp_planner.jit import compiled, inner
@inner
def twice(x: int) -> int:
    return 2 * x
@compiled
def kernel(x):
    return twice(x) + 1
"""


class Cache(Place):
    """Code of the planner is compiled, kept in a cache and found there again."""

    name = "cache"
    points = (*range(10), 16, 24)

    @property
    def source(self) -> Path:
        """The folder of the code, which no fault meets."""
        return self.folder.with_name("code")

    def set_up(self) -> None:
        self.source.mkdir()
        (self.source / "faulty_kernel.py").write_text(KERNEL)

    def act(self, armed: Armed) -> str:
        numba.config.CACHE_DIR = str(self.folder)
        sys.path.insert(0, str(self.source))
        with armed():
            try:
                module = importlib.import_module("faulty_kernel")
                assert module.kernel(3) == 7
            except MemoryError:
                return "refused (MemoryError)"
        return "compiled"

    def judge(self) -> None:
        """Have another process use what is kept."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = self.act(nullcontext) != "compiled"
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0, "the next process cannot use the cache"


SPEC = Spec.from_text('mask band(w: tokens = 20) = causal and q - k < w\nfor "*" use band(w = 30)')
ROWS = [{"tokens": list(range(n))} for n in (60, 50, 40, 30)]
OPTIONS = {
    "token_budget": 64, "block_size": 8, "cluster": Cluster(devices_per_node=2),
    "shape": ModelShape(2, 1, 8, 4), "config": PlanConfig(partitioner="static:zigzag"), "rank": 0,
}  # fmt: skip


@cache
def own_batches() -> list[str]:
    """Plan all batches in this process, undisturbed."""
    return [digest(plan) for _, plan in make_loader(ROWS, SPEC, **OPTIONS)]


def processes_in(folder: Path) -> list[str]:
    """Find the processes whose current folder lies in this one."""
    found = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):
            if os.readlink(link).startswith(str(folder)):
                found.append(link.parent.name)
    return found


class _Training(Place):
    """A loop over batches that a planner process makes ahead."""

    starts_armed: ClassVar[bool] = False
    may_lose_files = True

    @property
    def vanishing(self) -> Path:
        """The folder for temporary files and the current one."""
        return self.folder / "tmp"

    def set_up(self) -> None:
        self.vanishing.mkdir(parents=True)

    def act(self, armed: Armed) -> str:
        os.environ["TMPDIR"] = str(self.vanishing)
        os.chdir(self.vanishing)
        if self.stops:
            plan_sources.PLAN_TIME_LIMIT_S = LIMIT_S
            worker_module.START_LIMIT_S = LIMIT_S if self.starts_armed else 300.0
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            loader = make_loader(ROWS, SPEC, processes=1, ahead=2, **OPTIONS)
            batches, found = iter(loader), []
            if not self.starts_armed:
                found.append(digest(next(batches)[1]))
            with armed():
                found += [digest(plan) for _, plan in batches]
            lost = loader.metrics.lost
            loader.close()
        assert found == own_batches(), f"lost batches: {len(found)} of {len(own_batches())}"
        return f"all batches, {'some planned here' if lost else 'no planner lost'}"

    def judge(self) -> None:
        """Find no process and no file that a trainer, killed or not, left behind."""
        end = time.monotonic() + 10
        while (left := processes_in(self.folder)) and time.monotonic() < end:
            time.sleep(0.01)
        assert not left, f"processes left: {left}"
        assert not [p for p in self.folder.rglob("*") if not p.is_dir()], "files left"

    stops: ClassVar[bool] = False


class PlannerStart(_Training):
    """The planner process loads what it needs."""

    name = "planner start"
    calls = ("open", "read")
    worker, starts_armed = True, True
    points = (0, 200)
    paths = "*"


class PlannerSpawn(_Training):
    """The trainer opens what a planner process needs."""

    name = "planner spawn"
    calls = ("socketpair",)
    starts_armed = True
    points = (0,)
    paths = "socketpair"


class Exchange(_Training):
    """The trainer sends requests and receives answers."""

    name = "exchange"
    calls = ("send", "recv")
    points = (0, 1)
    paths = "socket:*"


class PlannerReply(Exchange):
    """The planner process receives requests and sends answers."""

    name = "planner reply"
    worker = True


class _Served(Place):
    """A dashboard server and a browser in one process."""

    def set_up(self) -> None:
        (self.folder / "served").mkdir(parents=True)
        (self.folder / "tmp").mkdir()
        write_plan(self.folder / "served" / "a.dcpplan", plans()[0])

    @property
    def vanishing(self) -> Path:
        return self.folder / "tmp"

    def act(self, armed: Armed) -> str:
        import tempfile

        tempfile.tempdir = str(self.vanishing)
        with start_server(self.folder / "served") as server:
            address = server.url.split("/")[2]
            self.visit(address)
            with armed():
                outcome = self.visit(address)
            self.vanishing.mkdir(exist_ok=True)
            for _ in range(2):  # what was lost is noticed by the first
                last = self.visit(address)
            assert last == "answered", f"afterwards: {last}"
        return outcome

    def visit(self, address: str) -> str:
        """Ask for what the place offers; return how that ended."""
        raise NotImplementedError


def ask(address: str, path: str, body: bytes, kind: str) -> tuple[int, dict]:
    """Post something; give the status and the JSON of the answer."""
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request("POST", path, body, {"Content-Type": kind})
    answer = connection.getresponse()
    status, text = answer.status, answer.read()
    connection.close()
    try:
        return status, json.loads(text)
    except ValueError:
        raise AssertionError(f"{path}: {status}, no JSON: {text[:200]!r}") from None


class Upload(_Served):
    """A browser sends a plan, which the server keeps in its private folder."""

    name = "upload"
    paths = "{}/tmp/*"

    def visit(self, address: str) -> str:
        content = (self.folder / "served" / "a.dcpplan").read_bytes()
        asked = f"/api/uploads?name=x&size={len(content)}"
        status, said = ask(address, asked, b"", "text/plain")
        assert status == 201, said
        kind = "application/octet-stream"
        status, said = ask(address, f"/api/uploads/{said['id']}?at=0", content, kind)
        if status == 200:
            return "answered"
        assert status in (400, 503, 507), f"{status}: {said}"
        assert said["error"], "no message"
        return "refused (message)"


class EditorWorker(_Served):
    """The page of the editor asks a worker process to check and draw a mask."""

    name = "editor worker"
    calls = ("open", "read", "send", "recv")
    worker = may_lose_files = True
    points = (0, 1, 30)
    paths = "*"

    def visit(self, address: str) -> str:
        routes.CHECK_LIMIT_S = routes.PREVIEW_LIMIT_S = 4.0
        for task in ("check", "preview"):
            body = json.dumps({"text": "mask m = causal", "mask": "m", "sample": "64"}).encode()
            status, said = ask(address, f"/api/edit/{task}", body, "application/json")
            if status == 200 and "error" not in said:
                continue
            assert status in (200, 503), f"{status}: {said}"
            assert said["error"], "no message"
            return "refused (message)"
        return "answered"


PLACES: dict[str, type[Place]] = {
    place.name: place
    for place in (
        PlanWrite, Exchange, PlannerSpawn, PlannerStart, PlannerReply, TraceWrite, RunLog, Cache,
        Upload, EditorWorker,
    )
}  # fmt: skip
