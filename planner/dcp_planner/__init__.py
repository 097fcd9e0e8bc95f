"""Plan context parallelism: a validated plan and its predicted timeline for one batch.

```
BlockSparsity ─build_workload→ Workload ─place→ Placement ─make_schedule→ Schedule
─assemble→ Plan ─simulate→ Trace
```
`build_plan` runs the stages up to the plan and validates it. The package needs numpy and numba
only; KaHyPar runs in a process of its own. Public names load on first use.
"""

import lazy_loader

from dcp_dsl.extras import named_by_extra

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = named_by_extra(_load, "plan")
