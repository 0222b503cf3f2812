"""Layer 9: the commands of ``gptf``: parsing and printing only."""
