"""Plan a whole training step: which documents form which micro-batch, on which devices."""
