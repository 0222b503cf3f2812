"""A process between ``horovodrun`` and a worker, so that the worker is asked to stop before it is stopped.

To end a job, ``horovodrun`` sends SIGTERM to the *children* of the process it started, gives them five seconds, and then
freezes and kills that process. It expects a shell there. But where /bin/sh is a shell that becomes the one command it runs
(bash), the worker has no children, and is frozen at once, without a chance to write a checkpoint.
"""

import ctypes
import os
import signal
import sys
from contextlib import suppress


def go_on_in_child(lives: int = 1) -> None:
    """Return in a child process; this process passes signals on to it and ends as it ends.

    :param lives: how many children there may be, one after the other, if they are aborted. Horovod aborts the workers that
        it connects when one of them dies meanwhile; in an elastic job they can begin again.
    """
    parent, child, code = os.getpid(), 0, -signal.SIGABRT
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def pass_on(number: int, _: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    while code == -signal.SIGABRT and lives > 0:
        lives -= 1
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        for number, handler in before.items():
            signal.signal(number, pass_on if child else handler)
        if child == 0:
            _die_with(parent)
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _die_with(parent: int) -> None:
    """Have the kernel end this process with its parent, where there is a call for it (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
