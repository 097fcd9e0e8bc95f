"""Compute figures of plans, compare them, and bound what any plan can reach."""
