"""Plans to look at when there are none: standard masks, planned while one waits a few seconds.

They are requests to `/api/edit/plan`, so a worker process plans them; `assets/examples.js` sends
them one after the other. The first two are one batch placed in two ways, to be compared.
"""

import json
from typing import Any

PACKED = """# Packed documents: causal, and nothing crosses a document's border.
segment doc = [doc_lens]*
mask document = causal and same(doc)
"""
LAMBDA = """# The first tokens stay visible beside a sliding window (StreamingLLM).
mask streaming(sink: tokens = 64, window: tokens = 4k) = causal and (k < sink or q - k < window)
"""
DOCUMENTS = (9000, 400, 5200, 1300, 700, 11000, 2600, 2568)

EXAMPLES: tuple[dict[str, Any], ...] = tuple(  # Any: JSON values
    {
        "label": f"example: {name}",
        "text": text,
        "mask": mask,
        "sample": json.dumps(sample),
        "nodes": 2,
        "devices_per_node": 4,
        "method": method,
        "budget": "fast",
    }
    for name, text, mask, sample, method in (
        ("documents", PACKED, "document", {"doc_lens": DOCUMENTS}, "portfolio"),
        ("documents, zigzag", PACKED, "document", {"doc_lens": DOCUMENTS}, "static:zigzag"),
        ("streaming", LAMBDA, "streaming", {"len": 32_768}, "portfolio"),
    )
)
"""Bodies of requests, each with the `label` that the list shows."""
