"""The ordinary GPyTorch loop on Horovod's workers: horovodrun -np 2 python experiments/train_horovod.py DATA [STEPS]

Each worker holds its shard of the entries. Inside the bound, one allreduce sums the statistics, and one the gradient; after
that all workers hold the same complete gradient and take the same step. So there is no DistributedOptimizer and nothing to
broadcast at each step, and any torch optimiser will do. `horovodrun -np 2 gptf train DATA` does all of this and more:
checkpoints, restarts, early stopping.
"""

import sys

import gpytorch
import torch

from gptf_gpytorch import GPTF, CollapsedELBO, initialize, read
from gptf_gpytorch.distributed import current


def main(path: str, steps: int = 50) -> None:
    # Calls hvd.init() where horovodrun started this process; without it, this is one process that is all workers.
    communicator = current(timeout=600)

    # Every worker reads the file and keeps its part. For files that do not fit one machine, there is read_shard.
    entries = read(path)
    mine = entries.shard(communicator.rank, communicator.size)
    centre, spread = entries.values.mean(), entries.values.std()
    values = (mine.values - centre) / spread

    model = GPTF(shape=entries.shape, rank=2, num_inducing=min(50, len(entries)))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    # num_data is the number of entries of all workers; the sum over workers is checked against it.
    mll = CollapsedELBO(likelihood, model, num_data=len(entries), communicator=communicator)
    # The same start on all workers: it ends with a broadcast of the parameters.
    initialize(mll, mine.indices, values, seed=0)

    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.03)
    for step in range(steps):
        optimizer.zero_grad()
        loss = -mll(model(mine.indices), values)
        loss.backward()
        optimizer.step()
        if communicator.rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step + 1}  bound {-loss.item():.6f}", flush=True)
    mll.refresh()  # q(v) at the final parameters: all workers call it, and all can predict afterwards

    if communicator.rank == 0:
        with torch.no_grad():
            mean = model.eval()(entries.indices[:1000]).mean * spread + centre
        error = (mean - entries.values[:1000]).square().mean().sqrt()
        print(f"RMSE {error:.4f} on {communicator.size} worker(s), standard deviation {spread:.4f}", flush=True)
    communicator.close()  # nobody leaves while others work


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
