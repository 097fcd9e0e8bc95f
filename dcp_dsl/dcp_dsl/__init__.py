"""Masks as text: parse, check, bind to samples, compile to exact block sparsity.

```
.dcpm text ─parse→ Program ─check→ Mask ─compile(sample)→ Form ─block_sparsity→ BlockSparsity
```
The package needs numpy and lark, and pyarrow to read data sets. Names load on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
