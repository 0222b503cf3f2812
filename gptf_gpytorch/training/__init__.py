"""Training: the configuration of a run, optimisers, `fit`, checkpoints."""
