"""The methods that ours is compared with; ``methods.py`` has them by name."""
