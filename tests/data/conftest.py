"""Settings that the tests of the data layer share."""

from hypothesis import settings

# The first example of a test pays for imports and compiled regular expressions.
settings.register_profile("unhurried", deadline=None, max_examples=60)
settings.load_profile("unhurried")
