"""Block sparsity and a cluster in, a validated plan and its predicted timeline out.

```
BlockSparsity ─→ Workload ─→ Hypergraph ─partition→ Placement ─schedule→ Schedule ─emit→ Plan
─simulate→ Trace
```
`build_plan` walks the whole way. numpy only; KaHyPar runs in a process of its own. Names load on
first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
