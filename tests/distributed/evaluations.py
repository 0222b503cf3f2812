"""Run by horovodrun, or alone: bounds and gradients of fixed problems, split between workers in several ways."""

import json
from itertools import product

import gpytorch
import torch

from gptf_gpytorch import GPTF, CollapsedELBO, Communicator, ProbitLikelihood
from gptf_gpytorch.distributed import current

N, SHAPE = 60, (8, 7, 6)


def shards(n: int, size: int) -> dict[str, list[range]]:
    """Ways to split n entries."""
    empty = [range(0)] * (size - 1)
    return {
        "equal": [range(rank, n, size) for rank in range(size)],
        "one has all": [*empty, range(n)],
        "unequal": [range(1), range(1, n), *empty[1:]][:size] if size > 1 else [range(n)],
    }


def evaluate(
    binary: bool, n: int, draws: int, rows: range, communicator: Communicator
) -> tuple[CollapsedELBO, dict[str, object]]:
    generator = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    model = GPTF(shape=SHAPE, rank=2, num_inducing=min(9, n), draws=draws)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    cells = torch.cartesian_prod(*(torch.arange(d) for d in SHAPE))[torch.randperm(336, generator=generator)[:n]]
    y = torch.randn(n, generator=generator, dtype=torch.float64)
    y = (y > 0).double() if binary else y
    likelihood = ProbitLikelihood() if binary else gpytorch.likelihoods.GaussianLikelihood()
    mll = CollapsedELBO(likelihood, model, n, communicator, chunk_size=7, lambda_tolerance=1e-11)
    bound = mll(model(cells[list(rows)]), y[list(rows)]) * n
    bound.backward()
    gradient = torch.cat([p.grad.flatten() for p in mll.parameters() if p.grad is not None])
    found = {"bound": bound.item().hex(), "gradient": [number.hex() for number in gradient.tolist()]}
    return mll, found


def main() -> None:
    communicator = current(timeout=30)
    found, evaluations, passes = {}, 0, 0
    for n in (N, 2):  # with three workers, more workers than entries
        for binary, draws in product((False, True), (0, 2)):
            for name, split in shards(n, communicator.size).items():
                mll, result = evaluate(binary, n, draws, split[communicator.rank], communicator)
                found[f"{n} {'probit' if binary else 'gaussian'} {draws} draws {name}"] = result
                evaluations += 1
                passes += mll.solution.passes if mll.solution else 0
    print("RESULT", json.dumps({"found": found, "evaluations": evaluations, "passes": passes}), flush=True)
    communicator.close()


if __name__ == "__main__":
    main()
