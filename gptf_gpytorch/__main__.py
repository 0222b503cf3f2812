"""The ``gptf`` command before its imports, which take seconds: Ctrl-C ends it there, too, without a traceback."""

import importlib
import os
import signal


def main() -> None:
    """Import the command, and run it; while it runs it takes the signals itself."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not an exception: an import that catches it may go on in a state that nobody foresaw.
        signal.signal(number, lambda number, frame: os._exit(128 + number))
    importlib.import_module("gptf_gpytorch.cli").main()


if __name__ == "__main__":
    main()
