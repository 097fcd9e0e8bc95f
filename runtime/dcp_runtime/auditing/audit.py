"""`audit_script`: one run on one process, one on ranks, and what their records say."""

import tempfile
from dataclasses import replace
from pathlib import Path

from dcp_runtime.auditing.findings import AuditFinding
from dcp_runtime.auditing.judge import judge
from dcp_runtime.auditing.runs import AuditOrder, run_script


def audit_script(order: AuditOrder) -> list[AuditFinding]:
    """Run a script on ranks of this machine and on one process, and compare."""
    with tempfile.TemporaryDirectory(prefix="dcpm-audit-") as name:
        # One process reads the batches of all ranks one by one, where they read their own.
        single = replace(order, words=order.alone or order.words, ranks=1)
        single = replace(single, steps=order.steps * order.ranks)
        alone = run_script(single, Path(name, "alone"))
        ranks = run_script(order, Path(name, "ranks"))
        return judge(alone, ranks, order.steps)
