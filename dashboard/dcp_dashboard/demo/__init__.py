"""The main job, from a .dcpm file and real documents to a verified distributed run.

`run_demo` walks through every room once; the `dcpm demo` command prints its report and serves the
plans it wrote.
"""

from dcp_dashboard.demo.pipeline import DemoConfig, run_demo
from dcp_dashboard.demo.report import DemoReport
from dcp_dashboard.demo.tables import print_report

__all__ = ["DemoConfig", "DemoReport", "print_report", "run_demo"]
