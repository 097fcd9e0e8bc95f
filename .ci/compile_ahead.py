"""Compile the planner, for any processor of this architecture into the package, or for this one.

`make wheel` runs it with each Python that the wheel shall bring compiled code for; numba reads such
code only with the Python (3.x), the numba and the architecture that it was made with. `make
compiled` runs it with `--here`: numba keeps the code, for this processor, where it always does.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= (
    {} if "--here" in sys.argv else {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
)

from click.testing import CliRunner
from numba.core.registry import CPUDispatcher

from dcp_dsl.cli import dcpm
from dcp_planner import jit, read_plan
from dcp_planner.causes import find_causes_of_run

COMMANDS = (
    "plan a.dcpm --mask m --sample len=20k --sample len=5k --cluster 2x2 --against static"
    " --out a.dcpplan",
    "plan a.dcpm --mask m --sample len=20k --cluster 2x2 --memory-limit 3000000 --front",
    "simulate a.dcpplan", "why a.dcpplan", "validate a.dcpplan",
    "step a.dcpm --dataset rows.jsonl --mask m --mesh 2x2",
)  # fmt: skip


def keep(cache: Any, sig: Any, data: Any) -> None:  # Any: numba has no types
    """Keep compiled code for the release; what it was inferred from is no use there."""
    data = data._replace(type_annotation="")
    cache.shipped().save(cache.shipped_key(sig), cache._impl.reduce(data))


def main() -> None:
    """Compile everything, and into the package where it is for a release."""
    if "--here" in sys.argv:
        reach_all()
        return
    jit.SHIPPED.mkdir(parents=True, exist_ok=True)
    jit._Cache.load_overload = lambda *_: None  # compile everything
    jit._Cache.save_overload = keep
    reach_all()
    modules = [m for name, m in sys.modules.items() if name.startswith("dcp_planner.")]
    made = {v for m in modules for v in vars(m).values() if isinstance(v, CPUDispatcher)}
    lacking = [d.py_func.__qualname__ for d in made if not d.signatures]
    assert not lacking, f"no command reaches {sorted(lacking)}"
    size = sum(file.stat().st_size for file in jit.SHIPPED.iterdir())
    print(f"{jit.SHIPPED}: {len(made)} functions, {size / 1e6:.2f} MB")


def reach_all() -> None:
    """Run commands that reach every compiled function."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("a.dcpm").write_text("mask m = causal and (k < 64 or q - k < 4k)\n")
        Path("rows.jsonl").write_text("".join(f'{{"len": {n}}}\n' for n in range(200, 9000, 40)))
        for command in COMMANDS:
            result = CliRunner().invoke(dcpm, command.split())
            assert result.exit_code == 0, f"{command}: {result.output}\n{result.exception!r}"
        content = read_plan("a.dcpplan")
        find_causes_of_run(content.plan, content.traces[0])


if __name__ == "__main__":
    main()
