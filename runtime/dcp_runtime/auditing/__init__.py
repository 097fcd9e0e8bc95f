"""Audit a training script: are its gradients, losses, rows and norms those of one process?"""
