"""A trained small problem, and its predictions at a few cells."""

import torch
from conftest import Small

from gptf_gpytorch import GPTF, CollapsedELBO

CELLS = torch.tensor([[0, 0, 0], [4, 3, 2], [2, 1, 1]])


def trained(problem: Small) -> CollapsedELBO:
    mll = problem.mll(lambda_tolerance=1e-11)
    mll(problem.model.train()(problem.indices), problem.y).backward()
    return mll


def moments(model: GPTF) -> tuple[torch.Tensor, torch.Tensor]:
    with torch.no_grad():
        q = model.eval()(CELLS)
        return q.mean, q.variance
