"""Plan context parallelism: a validated plan and its predicted timeline for one batch.

```
BlockSparsity ─→ Workload ─→ Hypergraph ─partition→ Placement ─schedule→ Schedule ─emit→ Plan
─simulate→ Trace
```
`build_plan` does all of this. numpy and numba only; KaHyPar runs in a process of its own. Names
load on first use.
"""

import lazy_loader

from dcp_dsl.extras import named_by_extra

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__getattr__ = named_by_extra(_load, "plan")
