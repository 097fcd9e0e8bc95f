"""Execute a plan on tensors: exact attention, forward and backward, over several processes.

`DCPDataloader` yields this rank's tokens and a plan, `DCPExecutor` makes the plan ready, `DCPAttn`
computes attention under it. `run_plan` starts processes of its own, executes a plan on random
tensors and verifies the result.
Names load on first use; torch loads with the first name that needs it.
"""

import lazy_loader

from dcp_dsl.extras import named_by_extra

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = named_by_extra(_load, "run")
