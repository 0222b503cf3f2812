"""Layer 9: what a run shows to people, drawn and told to MLflow."""
