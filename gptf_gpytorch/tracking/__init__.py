"""Layer 6: where a run's numbers go."""
