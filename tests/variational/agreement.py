"""What must not change a bound and its gradient: the path, and how entries are dealt to workers."""

from collections.abc import Callable

import pytest
import torch
from conftest import Small
from torch import Tensor
from workers import ThreadCommunicator, Workers

Found = tuple[float, dict[str, Tensor]]


def weights(problem: Small) -> Tensor:
    return torch.linspace(0.5, 2.0, len(problem.y), dtype=torch.float64)


def evaluate(problem: Small, rows: slice = slice(None), **options: object) -> Found:
    """The bound of weighted entries, and the gradient by every parameter."""
    mll = problem.mll(lambda_tolerance=1e-12, chunk_size=16, **options)
    names, parameters = zip(*problem.parameters().items(), strict=True)
    bound = mll(problem.model.train()(problem.indices[rows]), problem.y[rows], weights=weights(problem)[rows])
    return bound.item(), dict(zip(names, torch.autograd.grad(bound, parameters), strict=True))


def check_paths(problem: Small) -> None:
    """The fused maps, compiled or not, agree with the generic one."""
    expected = evaluate(problem, path="generic")
    for path in ("whitened", "explicit"):
        for compiled in (True, False):
            found = evaluate(problem, path=path, compiled=compiled)
            assert found[0] == pytest.approx(expected[0], rel=1e-10)
            for name, gradient in expected[1].items():
                assert float((found[1][name] - gradient).norm()) <= 1e-8 * float(gradient.norm()), name


def check_workers(problem: Small, make: Callable[[], Small], first: int) -> None:
    """Three workers, of which one has no entries, agree with one process.

    :param make: the same problem anew.
    :param first: entries of the first worker.
    """
    expected, models = evaluate(problem), [make() for _ in range(3)]

    def job(communicator: ThreadCommunicator) -> Found:
        rows = [slice(0, first), slice(first, first), slice(first, None)][communicator.rank]
        return evaluate(models[communicator.rank], rows, communicator=communicator)

    for bound, gradients in Workers(3).run(job):
        assert bound == pytest.approx(expected[0], rel=1e-11)
        for name, gradient in expected[1].items():
            torch.testing.assert_close(gradients[name], gradient, rtol=1e-8, atol=1e-11)
