"""Play programs on a model of the cluster and keep what happened as a trace."""
