"""Run by horovodrun: ``gptf``, on workers of which one dies in the moment in which Horovod connects them for the second time."""

import os
import signal

import horovod.torch as hvd

from gptf_gpytorch.cli import main

connect, calls = hvd.init, []


def init() -> None:
    calls.append(os.environ["HOROVOD_HOSTNAME"])
    if calls == ["Localhost", "Localhost"]:
        os.kill(os.getpid(), signal.SIGKILL)
    connect()


hvd.init = init
main()
