"""How messages name an option: as a Python caller writes it or, under the ``gptf`` command, as a flag."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Spelling = Callable[[str, Any], str]


def as_argument(name: str, value: Any = None) -> str:
    """As Python has it: ``unseen='prior'``."""
    return name if value is None else f"{name}={value!r}"


def as_flag(name: str, value: Any = None) -> str:
    """As a command line has it: ``--unseen prior``."""
    flag = f"--{name.replace('_', '-')}"
    return flag if value is None or value is True else f"{flag} {value}"


# Of the process, as a locale is: a message is made in any thread, and goes to other workers as text.
_spelling: Spelling = as_argument


def option(name: str, value: Any = None) -> str:
    """An option, perhaps with a value to give it, in the words of whoever reads the message.

    Example:
        >>> option("unseen", "prior")
        "unseen='prior'"
        >>> with spelled(as_flag):
        ...     option("unseen", "prior"), option("max_iterations"), option("resume", True)
        ('--unseen prior', '--max-iterations', '--resume')

    """
    return _spelling(name, value)


@contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Name options in this way from here on, until the end of the block."""
    global _spelling
    before, _spelling = _spelling, spelling
    try:
        yield
    finally:
        _spelling = before
