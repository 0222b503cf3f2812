"""Run by horovodrun on every worker: the sum over workers of something each one knows only a part of."""

import horovod.torch as hvd
import torch

hvd.init()
mine = torch.arange(4, dtype=torch.float64) + 10.0 * hvd.rank()
total = hvd.allreduce(mine, op=hvd.Sum)
expected = sum(torch.arange(4, dtype=torch.float64) + 10.0 * rank for rank in range(hvd.size()))
if not torch.equal(total, expected):
    raise SystemExit(f"the sum over {hvd.size()} workers must be {expected}. Got {total}.")
print(f"worker {hvd.rank()} of {hvd.size()}: allreduce is right")
hvd.shutdown()
