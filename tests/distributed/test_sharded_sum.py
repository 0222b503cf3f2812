"""The sum over chunks and workers: collectives, gradients, empty shards, memory."""

import importlib
import signal
import subprocess
import sys
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from conftest import N, Small
from torch import Tensor
from workers import ThreadCommunicator, Workers

from gptf_gpytorch import CollapsedELBO, Communicator, InputError, StalePosteriorError
from gptf_gpytorch.distributed import slots

summing = importlib.import_module("gptf_gpytorch.distributed.sharded_sum")  # the package has a function of that name

SPLITS = {
    "equal": [range(0, 20), range(20, 40)],
    "unequal": [range(0, 3), range(3, 40)],
    "interleaved": [range(0, 40, 3), range(1, 40, 3), range(2, 40, 3)],
    "one empty": [range(0, 0), range(0, 40)],
}


def evaluate(problem: Small, rows: range, communicator: Communicator | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """The bound, its whole gradient and q's mean on a copy of the problem, as one worker computes them."""
    model, likelihood = deepcopy(problem.model), deepcopy(problem.likelihood)
    mll = CollapsedELBO(likelihood, model, N, communicator, chunk_size=6, lambda_tolerance=1e-11)
    bound = mll(model(problem.indices[list(rows)]), problem.y[list(rows)]) * N
    bound.backward()
    gradient = torch.cat([p.grad.flatten() for p in (*model.parameters(), *likelihood.parameters())])
    return bound.detach(), gradient, model.variational_strategy._variational_distribution.variational_mean


@pytest.mark.parametrize("split", SPLITS)
def test_workers_agree_with_one_process_and_bitwise_with_each_other(either: Small, split: str) -> None:
    shards = SPLITS[split]
    found = Workers(len(shards)).run(lambda comm: evaluate(either, shards[comm.rank], comm))
    bound, gradient, mean = evaluate(either, range(N))
    for result in found:
        for mine, first in zip(result, found[0], strict=True):
            assert torch.equal(mine, first)
        torch.testing.assert_close(result[0], bound, rtol=1e-12, atol=0)
        assert float((result[1] - gradient).norm() / gradient.norm()) <= 1e-10
        torch.testing.assert_close(result[2], mean, rtol=0, atol=1e-9)


def test_exactly_two_collectives_of_known_length(gaussian: Small) -> None:
    """One sums the statistics, one sums one dense gradient, each with three numbers a worker: no keys, nothing else."""
    lengths = Workers(2).run(lambda comm: (evaluate(gaussian, SPLITS["equal"][comm.rank], comm), comm.lengths)[1])
    p = len(gaussian.B)
    parameters = sum(parameter.numel() for parameter in gaussian.model.parameters())
    assert lengths == [[p * p + p + 4 + 2 * 3, parameters + 2 * 3]] * 2


def test_a_probit_evaluation_adds_one_collective_a_pass(probit: Small) -> None:
    def job(comm: ThreadCommunicator) -> tuple[int, int]:
        model, likelihood = deepcopy(probit.model), deepcopy(probit.likelihood)
        mll = CollapsedELBO(likelihood, model, N, comm)
        rows = list(SPLITS["equal"][comm.rank])
        mll(model(probit.indices[rows]), probit.y[rows]).backward()
        return len(comm.lengths), mll.solution.passes

    for collectives, passes in Workers(2).run(job):
        assert collectives == passes + 2


def test_every_worker_passing_everything_is_an_error_on_all(gaussian: Small) -> None:
    def job(comm: ThreadCommunicator) -> str:
        with pytest.raises(InputError) as caught:
            evaluate(gaussian, range(N), comm)
        return str(caught.value)

    for message in Workers(2).run(job):
        assert f"num_data must be the number of entries of all workers, {N}. Got {2 * N} entries" in message


@pytest.mark.parametrize("bad", ["values", "too few values", "another model's output"])
def test_what_one_worker_breaks_is_an_error_on_all(either: Small, bad: str) -> None:
    def job(comm: ThreadCommunicator) -> tuple[str, int]:
        model, likelihood = deepcopy(either.model), deepcopy(either.likelihood)
        mll = CollapsedELBO(likelihood, model, N, comm)
        rows = list(SPLITS["equal"][comm.rank])
        output, y = model(either.indices[rows]), either.y[rows]
        if comm.rank == 1 and bad == "values":
            y = y.index_fill(0, torch.tensor([7]), float("nan"))
        elif comm.rank == 1 and bad == "too few values":
            y = y[:-1]
        elif comm.rank == 1:
            output = deepcopy(either.model)(either.indices[rows])
        with pytest.raises(InputError) as caught:
            mll(output, y)
        collectives = len(comm.lengths)
        # The workers are still in step.
        mll(model(either.indices[rows]), either.y[rows]).backward()
        return str(caught.value), collectives

    found = Workers(2).run(job)
    assert found[0] == found[1]
    assert found[0][0].startswith("Worker 1: ")
    assert found[0][1] == 1, "one sum"


class Counting:
    """Counts the chunks that it maps, and is asked to stop while it maps the second leg."""

    threaded, tables = False, ()

    def __init__(self, chunks: int) -> None:
        self.count, self.seen = chunks, 0

    def chunks(self) -> list[int]:
        return list(range(self.count))

    def total(self, chunks: list[int]) -> tuple[Tensor]:
        self.seen += len(chunks)
        return (torch.tensor([float(len(chunks))], dtype=torch.float64),)

    def wish(self) -> int:
        return signal.SIGTERM if self.seen > summing._LEG else 0


def test_a_worker_that_is_asked_to_stop_leaves_the_rest_of_its_chunks_and_all_hear_of_it() -> None:
    def job(comm: ThreadCommunicator) -> tuple[int, int, int]:
        entries = Counting(10 * summing._LEG)
        asking = comm.asking(entries.wish) if comm.rank == 1 else nullcontext()
        with asking, pytest.raises(slots.StopRequestedError) as caught:
            summing.total(entries, entries, comm)
        return entries.seen, caught.value.worker, caught.value.wish

    leg = summing._LEG
    assert Workers(2).run(job) == [(10 * leg, 1, signal.SIGTERM), (2 * leg, 1, signal.SIGTERM)]


def test_legs_add_up_to_the_whole(either: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = evaluate(either, range(N))
    monkeypatch.setattr(summing, "_LEG", 2)
    for mine, whole in zip(evaluate(either, range(N)), expected, strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-9, atol=1e-9)


def test_a_stop_that_comes_in_the_backward_pass_is_answered_there_by_all(either: Small) -> None:
    def job(comm: ThreadCommunicator) -> tuple[int, int]:
        model, likelihood = deepcopy(either.model), deepcopy(either.likelihood)
        rows = list(SPLITS["unequal"][comm.rank])
        mll, asked = CollapsedELBO(likelihood, model, N, comm), []
        with comm.asking(lambda: signal.SIGINT if asked else 0):
            bound = mll(model(either.indices[rows]), either.y[rows])
            asked += [True] if comm.rank == 0 else []
            with pytest.raises(slots.StopRequestedError) as caught:
                bound.backward()
        assert all(parameter.grad is None for parameter in model.parameters())
        return caught.value.worker, caught.value.wish

    assert Workers(2).run(job) == [(0, signal.SIGINT)] * 2


def test_a_stale_posterior_with_several_workers_is_not_refreshed_behind_their_backs(gaussian: Small) -> None:
    def job(comm: ThreadCommunicator) -> Tensor:
        model, likelihood = deepcopy(gaussian.model), deepcopy(gaussian.likelihood)
        rows = list(SPLITS["unequal"][comm.rank])
        mll = CollapsedELBO(likelihood, model, N, comm)
        mll(model(gaussian.indices[rows]), gaussian.y[rows]).backward()
        with torch.no_grad():
            model.factors[0].add_(0.5)
        model.eval()
        with pytest.raises(StalePosteriorError, match=r"mll.refresh\(\) on all workers"):
            model(gaussian.indices)
        mll.refresh()
        return model(gaussian.indices).mean.detach()

    first, second = Workers(2).run(job)
    torch.testing.assert_close(first, second, rtol=1e-10, atol=1e-12)


def test_a_step_between_forward_and_backward_is_an_error(either: Small) -> None:
    loss = -either.mll()(either.model(either.indices), either.y)
    with torch.no_grad():
        either.model.factors[0].add_(0.1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_frozen_parameters_stay_frozen(either: Small) -> None:
    either.model.factors[1].requires_grad_(False)
    either.model.covar_module.base_kernel.raw_lengthscale.requires_grad_(False)
    (-either.mll()(either.model(either.indices), either.y)).backward()
    assert either.model.factors[1].grad is None
    assert either.model.covar_module.base_kernel.raw_lengthscale.grad is None
    assert either.model.factors[0].grad.norm() > 0


MEMORY = """
import resource, sys, torch, gpytorch
from gptf_gpytorch import GPTF, CollapsedELBO
torch.set_num_threads(1)
n, p = int(sys.argv[1]), 50
torch.manual_seed(0)
model = GPTF(shape=(50, 50), rank=2, num_inducing=p)
indices = torch.randint(50, (n, 2), dtype=torch.int32)
mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=n)
(-mll(model(indices), torch.randn(n, dtype=torch.float64))).backward()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_memory_does_not_hold_a_kernel_column_for_every_entry() -> None:
    """400,000 more entries would take 160 MB as a stored K_BX; they themselves take 6.4 MB."""
    peaks = [
        int(subprocess.run([sys.executable, "-c", MEMORY, str(n)], capture_output=True, check=True, timeout=300).stdout)
        for n in (400_000, 800_000)
    ]
    assert peaks[1] - peaks[0] < 400_000 * 64
