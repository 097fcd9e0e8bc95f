"""Describe what is planned: cluster, shape of attention, workload, and what each part costs."""
