"""Layer 1: sums over chunks of entries and over workers."""
