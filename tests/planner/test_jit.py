"""Compiled code: kept in the user's cache, made anew where its source changes."""

import functools
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import click.testing
import numba.core.event
import numpy as np
import pytest
from numba import njit, types
from numpy.typing import NDArray

from dcp_dsl.arrays import Bools, Bytes, Indices, Ints
from dcp_planner import jit
from dcp_planner.commands.plan import plan
from dcp_planner.jit import COMPILE_CLOCK, check_private, check_unshared, compiled, inner

_COUNT = """
import importlib, json, pkgutil
import numpy as np
from numba.core.registry import CPUDispatcher
import dcp_planner
from dcp_dsl import Sample, Spec
from dcp_planner import Cluster, ModelShape, build_plan, cut_blocks
from dcp_planner import validate
from dcp_planner.model.cuts import choose_block_size
cluster = Cluster(2, 2)
mask = Spec.from_text("mask m = causal").mask("m")
for lengths in ([4000, 100], [90]):
    forms = [mask.bind(Sample(length=n)) for n in lengths]
    plan = build_plan(cut_blocks(forms, choose_block_size(forms, cluster)), ModelShape(), cluster)
    validate(plan)
found = {}
for module in pkgutil.walk_packages(dcp_planner.__path__, "dcp_planner."):
    if "worker" not in module.name:
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, CPUDispatcher):
                found[f"{value.py_func.__module__}.{name}"] = len(value.signatures)
print(json.dumps(found))
"""


_FORKS = """
import json, os, sys, tempfile, traceback
import numba, numba.core.config
for line in sys.stdin:
    code, folder, environment, arguments = json.loads(line)
    if os.fork():
        print(os.wait()[1], flush=True)
        continue
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv, sys.path[0], sys.dont_write_bytecode = ["-c", *arguments], folder, True
    numba.core.config.reload_config()
    tempfile.tempdir = None
    try:
        exec(code, {"__name__": "__main__"})
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    os._exit(status)
"""


@pytest.fixture(scope="module")
def run_python():
    """Run code in a fork of a process that has imported numba and nothing of the product.

    Return its words and its lines of errors.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", _FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def run(code, folder, *arguments, **environment):
        unset = {"NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        kept |= {name: str(value) for name, value in environment.items()}
        print(json.dumps([code, str(folder), kept, arguments]), file=server.stdin, flush=True)
        status, errors = server.stdout.readline(), (folder / "err").read_text()
        assert status == "0\n", errors
        return (folder / "out").read_text().split(), errors.splitlines()

    yield run
    server.communicate()


def test_every_compiled_function_is_compiled_once(tmp_path, run_python):
    out, err = run_python(_COUNT, tmp_path)
    found = json.loads(" ".join(out))
    assert len(found) > 20
    assert {name: count for name, count in found.items() if count > 1} == {}
    assert err == []


_KERNEL = """
import sys
from dcp_planner.jit import compiled, inner
from dcp_planner.jit import compile_seconds, stopwatch
assert compile_seconds() == 0.0
@inner
def twice(x: int) -> int:
    return 2 * x
sys.stderr.write("imported\\n")
imported = compile_seconds()
@compiled
def kernel(x):
    return twice(x) + 1
with stopwatch() as watch:
    assert kernel(3) == 7
print(imported > 0, watch.compile_s > 0, watch.seconds >= 0, len(kernel.stats.cache_hits))
"""
_ANEW = (
    ["False", "True", "True", "0"],
    ["imported", "compiling the planner once on this machine, some 15 s on a free core"],
)
_KEPT = (["False", "False", "True", "1"], ["imported"])
"""Words of a process that compiles the kernel, and of one that finds it."""


@pytest.fixture
def compile_kernel(run_python):
    """Import a small kernel in a process of its own; give what it prints, line by line."""

    def run(folder, *, is_written=True, **environment):
        if is_written:
            (folder / "kernel.py").write_text(_KERNEL)
        return run_python("import kernel", folder, **environment)

    return run


def test_compiled_code_is_kept_and_written_anew_where_it_cannot_be_read(tmp_path, compile_kernel):
    def run():
        return compile_kernel(tmp_path, NUMBA_CACHE_DIR=tmp_path / "cache")

    assert run() == _ANEW
    assert run() == _KEPT
    for ending in ("nbi", "nbc"):
        (path,) = tmp_path.rglob(f"cache/**/*.{ending}")
        for content in (path.read_bytes()[:40], b"foreign"):
            path.write_bytes(content)
            assert run() == _ANEW
    assert run() == _KEPT
    (index,) = tmp_path.rglob("cache/**/*.nbi")
    index.unlink()
    (index / "something").mkdir(parents=True)  # cannot be replaced, even by root
    assert run() == _ANEW


def test_another_installation_of_equal_sources_compiles_nothing(tmp_path, compile_kernel):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    cache = {"XDG_CACHE_HOME": tmp_path / "cache"}
    assert compile_kernel(first, **cache) == _ANEW
    assert compile_kernel(second, **cache) == _KEPT  # another path and time, the same content
    shutil.rmtree(first)  # as pip does before it installs anew
    first.mkdir()
    assert compile_kernel(first, **cache) == _KEPT
    assert {path.name for path in first.iterdir()} == {"kernel.py", "out", "err"}
    with (second / "kernel.py").open("a") as file:
        file.write("# changed\n")
    run = functools.partial(compile_kernel, second, is_written=False, **cache)
    assert (run(), run()) == (_ANEW, _KEPT)
    assert compile_kernel(first, **cache) == _KEPT  # two versions lie side by side


@pytest.fixture
def unwritable(tmp_path):
    """A folder for a module, and an environment whose user has no cache."""
    temporary = tmp_path / "tmp"
    temporary.mkdir(mode=0o700)
    module = tmp_path / "module"
    module.mkdir()
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null/cache"}
    return module, {**nowhere, "TMPDIR": temporary}, temporary / f"dcp-compiled-{os.geteuid()}"


def test_a_private_folder_keeps_what_no_other_place_can(unwritable, compile_kernel):
    module, environment, folder = unwritable
    assert compile_kernel(module, **environment) == _ANEW
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert compile_kernel(module, **environment) == _KEPT
    folder.chmod(0o770)  # somebody else may have put code there
    out, err = compile_kernel(module, **environment)
    assert out == _ANEW[0]
    assert "in every process: it cannot be kept in" in err[1]
    assert "set NUMBA_CACHE_DIR" in err[1]


@pytest.mark.parametrize(
    ("name", "mode", "above", "ours", "says"),
    [
        ("own", 0o700, 0o700, True, ""), ("own", 0o700, 0o1777, True, ""),
        ("link", 0o700, 0o700, True, "expected a folder$"),
        ("file", 0o700, 0o700, True, "expected a folder$"),
        ("own", 0o700, 0o777, True, "no sticky bit"),
        ("own", 0o700, 0o700, False, "a folder of this user that others cannot enter"),
        ("own", 0o750, 0o700, True, "a folder of this user that others cannot enter"),
    ],
)  # fmt: skip
def test_a_folder_that_others_can_change_is_not_private(
    tmp_path, monkeypatch, name, mode, above, ours, says
):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(mode)
    (tmp_path / "link").symlink_to("own")
    (tmp_path / "file").touch(0o600)
    tmp_path.chmod(above)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user if ours else user + 1)
    with pytest.raises(PermissionError, match=says) if says else nullcontext():
        check_private(tmp_path / name)


@pytest.mark.parametrize(
    ("mode", "above", "ours", "is_refused"),
    [
        (0o755, 0o755, True, False), (0o775, 0o755, True, False), (0o775, 0o755, False, True),
        (0o777, 0o755, True, True), (0o755, 0o775, False, True), (0o755, 0o1775, False, False),
        (0o755, 0o775, True, False), (0o700, 0o1777, False, False), (0o755, 0o777, True, True),
        (0o1777, 0o755, True, True),  # a sticky bit keeps nobody from adding files
    ],
)  # fmt: skip
def test_only_our_own_group_may_write_compiled_code(
    tmp_path, monkeypatch, mode, above, ours, is_refused
):
    (folder := tmp_path / "code").mkdir()
    folder.chmod(mode)
    tmp_path.chmod(above)
    group = os.getegid()
    monkeypatch.setattr(os, "getegid", lambda: group if ours else group + 1)
    said = pytest.raises(PermissionError, match="others can write compiled code here")
    with said if is_refused else nullcontext():
        check_unshared(folder)


class _Pair(NamedTuple):
    rows: Ints
    table: jit.FloatTable
    count: int
    share: float


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int, "int64"), (float, "float64"), (type(None), "none"),
        (Ints, "array(int64, 1d, C)"), (Bools, "array(bool, 1d, C)"),
        (Bytes, "array(uint8, 1d, C)"), (Indices, "array(int32, 1d, C)"),
        (jit.IntTable, "array(int64, 2d, C)"),
        (jit.IndexTable, "array(int32, 2d, C)"), (jit.FloatTable, "array(float64, 2d, C)"),
        (NDArray[np.uint64], "array(uint64, 1d, C)"),
        (tuple[int, Ints], "Tuple(int64, array(int64, 1d, C))"),
        (_Pair, "_Pair(array(int64, 1d, C), array(float64, 2d, C), int64, float64)"),
    ],
)  # fmt: skip
def test_types_of_compiled_functions_are_their_annotations(hint, expected):
    assert str(jit._numba_type(hint)) == expected


def test_compiled_code_depends_on_files_and_constants_that_its_functions_name():
    twice = inner(lambda x: 2 * x)
    scope = {"twice": twice, "_FACTOR": 3, "_NAME": "name", "_OTHER": [4], "np": np}
    exec("def f(x): return twice(x) * _FACTOR + len(_NAME) + _OTHER[0] + np.pi", scope)
    assert jit._linked(scope["f"]) == (scope["f"], twice.py_func)
    exec(compile("def g(x): return f(x) + f(x)", __file__, "exec"), scope | {"f": twice}, scope)
    sources = jit._sources((scope["g"], twice.py_func))
    assert sources == [jit._content(__file__)]
    assert sources[0] == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    exec(compile("def h(x): return x * _FACTOR + len(_NAME) + _OTHER[0]", __file__, "exec"), scope)
    assert jit._sources((scope["h"], twice.py_func)) == [*sources, "_FACTOR=3", "_NAME='name'"]


def test_without_numba_functions_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(jit, "njit", lambda **_: lambda function: function)
    for wrap in (compiled, inner, jit.inlined):
        assert wrap(uncached) is uncached


def test_a_cache_that_others_can_write_is_not_used(tmp_path, compile_kernel):
    def run():
        home = tmp_path / "home"
        return compile_kernel(tmp_path, NUMBA_CACHE_DIR=tmp_path / "cache", HOME=home)

    run()
    (leaf,) = {path.parent for path in tmp_path.rglob("cache/**/*.nbi")}
    leaf.chmod(0o777)
    there = {path: path.stat().st_mtime_ns for path in leaf.iterdir()}
    assert run() == _ANEW
    assert {path: path.stat().st_mtime_ns for path in leaf.iterdir()} == there
    assert run() == _KEPT  # in another folder


def uncached():
    """A function that numba has nowhere to keep."""
    made = {}
    exec(compile("def f(x: int) -> int: return x + 1", "<nowhere>", "exec"), made)
    return made["f"]


@pytest.fixture
def clock(monkeypatch):
    """The clock of this process, as it was before it told anything."""
    monkeypatch.setattr(COMPILE_CLOCK, "is_kept", True)
    monkeypatch.setattr(COMPILE_CLOCK, "_has_told", False)
    return COMPILE_CLOCK


def test_what_cannot_be_cached_is_told_before_it_is_compiled(clock, monkeypatch):
    told = []
    kernel = compiled(uncached())
    monkeypatch.setattr(clock, "_words", lambda: told.append(len(kernel.signatures)))
    assert kernel(1) == 2
    assert kernel(1.0) == 2.0
    assert (told, len(kernel.signatures), clock.is_kept) == ([0], 2, False)
    assert njit(lambda x: x)(1) == 1  # of somebody else
    assert told == [0]


def test_a_function_compiled_within_another_is_counted_once(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(jit, "perf_counter", lambda: now[0])
    clock = jit.CompileClock()
    numba.core.event.unregister("numba:compile", clock)
    outer, inside, foreign = (
        SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=name)})
        for name in ("outer", "inside", "foreign")
    )
    clock.watch("outer")
    clock.watch("inside")
    for at, heard, event in (
        (1.0, clock.on_start, outer), (2.0, clock.on_start, foreign), (4.0, clock.on_start, inside),
        (8.0, clock.on_end, inside), (16.0, clock.on_end, foreign),
    ):  # fmt: skip
        now[0] = at
        heard(event)
        assert clock.seconds == 0.0
    now[0] = 32.0
    clock.on_end(outer)
    assert clock.seconds == 31.0
    clock.on_start(inside)
    now[0] = 40.0
    clock.on_end(inside)
    assert clock.seconds == 39.0


def test_the_planning_time_leaves_compiling_out(tmp_path, clock, monkeypatch):
    from dcp_planner.batches import planning

    build_plan, calls = planning.build_plan, []
    kernel = compiled(uncached())

    def build_on_an_empty_cache(*arguments):
        calls.append(kernel(1))
        return build_plan(*arguments)

    spec = tmp_path / "a.dcpm"
    spec.write_text("mask m = causal\n")
    options = ["--sample", '{"len": 64}', "--mask", "m", "--cluster", "1x2", "--json"]
    monkeypatch.setattr(planning, "build_plan", build_on_an_empty_cache)
    # A clock that stands still but while the kernel is compiled, which takes it 1000 s.
    monkeypatch.setattr(jit, "perf_counter", lambda: 1000.0 * len(kernel.signatures))
    before = jit.compile_seconds()
    run = click.testing.CliRunner().invoke(plan, [str(spec), *options])
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    assert calls == [2]
    assert document["batches"][0]["plan_s"] == 0.0
    assert document["compile_s"] - before == 1000.0
    assert "s; the planning time excludes this" in run.stderr


def test_an_inner_function_is_compiled_by_the_first_that_calls_it_for_its_annotations():
    called = inner(uncached())
    assert called.signatures == []
    assert compiled(lambda x: called(x) + called(np.int32(x)))(1) == 4
    assert called.signatures == [(types.int64,)]


_SHIP = """
import pathlib, sys
from dcp_planner import jit
jit.SHIPPED = pathlib.Path("shipped")
class Shipping(jit._Cache):
    def save_overload(self, sig, data):
        self.shipped().save(self.shipped_key(sig), self._impl.reduce(data))
if len(sys.argv) > 1:
    jit._Cache = Shipping
import kernel
"""


def test_code_that_a_release_brings_is_used_while_its_source_is_the_same(tmp_path, run_python):
    (tmp_path / "shipped").mkdir()
    (tmp_path / "kernel.py").write_text(_KERNEL)

    def run(*ships):
        generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""} if ships else {}
        cache = {"NUMBA_CACHE_DIR": tmp_path / f"cache{len(ships)}"}
        return run_python(_SHIP, tmp_path, *ships, **generic, **cache)

    assert run("ship") == _ANEW
    assert len(list((tmp_path / "shipped").iterdir())) == 2
    assert run() == _KEPT
    assert not list(tmp_path.rglob("cache0/*.nb*"))
    with (tmp_path / "kernel.py").open("a") as file:
        file.write("\n")
    assert run() == _ANEW


def test_what_is_linked_to_changed_code_or_constants_of_other_files_is_compiled_anew(
    tmp_path, run_python
):
    function = "@inner\ndef {0}(x: int) -> int:\n    return {1}\n"
    (tmp_path / "middle.py").write_text(
        "from dcp_planner.jit import inner\nfrom called import f\n"
        + function.format("g", "2 * f(x)")
    )
    (tmp_path / "caller.py").write_text(
        "from dcp_planner.jit import compiled\nfrom middle import g\n"
        "@compiled\ndef h(x):\n    return g(x)\nprint(h(1), len(h.stats.cache_hits))\n"
    )
    said = []
    for factor, added in ((1, 1), (1, 1), (20, 1), (20, 100)):
        (tmp_path / "constants.py").write_text(f"ADDED = {added}\n")
        (tmp_path / "called.py").write_text(
            "from dcp_planner.jit import inner\nfrom constants import ADDED\n"
            + function.format("f", f"x * {factor} + ADDED")
        )
        said.append(run_python("import caller", tmp_path, HOME=tmp_path / "home")[0])
    assert said == [["4", "0"], ["4", "1"], ["42", "0"], ["240", "0"]]
