from .attention import DCPAttn
from .dataloader import DCPDataloader, LocalData
from .errors import RunError
from .executor import DCPExecutor
from .kernels.choice import KernelChoice, choose_kernel
from .launcher import RunConfig, RunResult, open_world, run_plan
from .verification import TensorError
from .world import ProcessWorld

__all__ = [
    "DCPAttn",
    "DCPDataloader",
    "DCPExecutor",
    "KernelChoice",
    "LocalData",
    "ProcessWorld",
    "RunConfig",
    "RunError",
    "RunResult",
    "TensorError",
    "choose_kernel",
    "open_world",
    "run_plan",
]
