"""Run plans on an emulated cluster: the real programs, with compute and links that take time."""
