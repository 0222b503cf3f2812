"""A process between ``horovodrun`` and a worker, so that the worker is asked to stop before it is stopped.

To end a job, ``horovodrun`` sends SIGTERM to the *children* of the process it started, gives them five seconds, and then
freezes and kills that process. It expects a shell there. But where /bin/sh is a shell that becomes the one command it runs
(bash), the worker has no children, and is frozen at once, without a chance to write a checkpoint.
"""

import ctypes
import os
import signal
import sys


def go_on_in_child() -> None:
    """Return in a child process; this process passes signals on to it and ends as it ends."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _die_with(parent)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: os.kill(child, number))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, where there is a call for it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
