"""Run by horovodrun: workers that sum without end, until a file is there and one of them does what the first argument says."""

import ctypes
import os
import sys
import time

import torch

from gptf_gpytorch.distributed.communicator import HorovodCommunicator

fault, go = sys.argv[1:]
communicator = HorovodCommunicator(timeout=3.0)
for step in range(10**6):
    communicator.sum(torch.ones(3, dtype=torch.float64))
    if step == 3 and communicator.rank == 0:
        print("under way", flush=True)
    if communicator.rank == (0 if fault == "first" else 1) and os.path.exists(go):
        if fault == "hang":
            time.sleep(600)
        elif fault == "hold":
            ctypes.PyDLL(None).sleep(600)  # no other thread runs meanwhile
        elif fault in ("other", "first"):
            communicator.broadcast(torch.zeros(7), root=1)
    time.sleep(0.01)
