"""A plan and tensors in, exact attention out, forward and backward, over several processes.

`DCPDataloader` yields this rank's tokens and a plan, `DCPExecutor` takes the plan, `DCPAttn`
computes. `run_plan` starts processes of its own, executes a plan on random tensors and verifies the
result.
Names load on first use; torch loads with the first of them.
"""

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    try:
        return _load(name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ModuleNotFoundError(
            f"dcp_runtime.{name} needs PyTorch, which is not installed; install it: "
            "pip install 'dcp-dsl[runtime]'",
            name="torch",
        ) from None
