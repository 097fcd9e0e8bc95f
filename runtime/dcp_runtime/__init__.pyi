from .attention import DCPAttn
from .dataloader import DCPDataloader, LocalData
from .executor import DCPExecutor
from .launcher import RunConfig, RunError, RunResult, run_plan
