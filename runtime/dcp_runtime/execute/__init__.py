"""Run plans on tensors: the executor, its passes, and attention layers with gradients."""
