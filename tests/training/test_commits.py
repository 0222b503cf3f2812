"""Commits: the latest one that any worker has is what all of them get, whatever happened to the run since."""

import pytest
import torch
from workers import ThreadCommunicator, Workers

from gptf_gpytorch.training import optimizers
from gptf_gpytorch.training.commits import Commits
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.saved import build
from gptf_gpytorch.training.state import Progress, snapshot, unpack


def quadratic(x: torch.Tensor) -> optimizers.Point:
    scale = torch.arange(1.0, len(x) + 1, dtype=x.dtype)
    return optimizers.Point(x, float((scale * x * x).sum()), 2 * scale * x)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_the_latest_commit_comes_to_all_as_it_was(name: str) -> None:
    config = TrainConfig(method="paper", rank=1, inducing=3)

    def job(comm: ThreadCommunicator) -> dict[str, torch.Tensor]:
        mll, optimizer, commits = build(config, (4, 3), 12), optimizers.make(name, 0.1), Commits()
        assert commits.share(comm) is None
        progress = Progress(quadratic(torch.ones(5, dtype=torch.float64)))
        for iteration in range(1, 4 + (comm.rank == 1)):  # worker 1 has one more
            progress.point, progress.iteration = optimizer.step(quadratic, progress.point), iteration
            with torch.no_grad():
                mll.model.factors[0].fill_(float(iteration))
            if comm.rank < 2:
                commits.last = snapshot(mll, optimizer, progress, 0)
        expected = {"x": progress.point.x, "factor": mll.model.factors[0].detach().clone()}
        expected |= optimizer.state()
        # What comes after the commit is not in it.
        optimizer.step(quadratic, progress.point)
        with torch.no_grad():
            mll.model.factors[0].fill_(-1.0)
        progress.iteration = 100
        fresh, other = build(config, (4, 3), 12), optimizers.make(name, 0.1)
        found = unpack(*commits.share(comm), fresh, other)
        assert found.iteration == 4
        restored = {"x": found.point.x, "factor": fresh.model.factors[0].detach(), **other.state()}
        return expected if comm.rank == 1 else restored

    one, expected, newcomer = Workers(3).run(job)
    for restored in (one, newcomer):
        assert restored.keys() == expected.keys()
        for key, tensor in expected.items():
            assert torch.equal(restored[key], tensor), key
