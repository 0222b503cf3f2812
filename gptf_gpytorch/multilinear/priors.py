"""The prior of the rows of a mode, drawn given the rows."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

PriorName = Literal["full", "independent"]
#: Shape and rate of the gamma prior of a precision: of a column of rows, and of the noise.
SHAPE, RATE = 0.5, 0.5


def draw_full(rows: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Normal-Wishart: mean `[D]` and precision `[D, D]` of rows `[a, D]`."""
    count, D = rows.shape
    b0 = 2.0
    mean = rows.mean(0)
    centred = rows - mean
    scale_inverse = torch.eye(D, dtype=rows.dtype) + centred.T @ centred
    scale_inverse += (b0 * count / (b0 + count)) * torch.outer(mean, mean)
    # Bartlett: T = F A A' F' ~ W(df, F F') with chi variables on the diagonal of A and normal ones below.
    df = D + count
    A = np.tril(generator.standard_normal((D, D)), -1)
    A[np.diag_indices(D)] = np.sqrt(2.0 * generator.standard_gamma((df - np.arange(D)) / 2.0))
    C = torch.linalg.cholesky(scale_inverse)
    factor = torch.linalg.solve_triangular(C.T, torch.from_numpy(A), upper=True)  # C'^-1 A, C'^-1 C^-1 = scale
    precision = factor @ factor.T
    noise = torch.from_numpy(generator.standard_normal((D, 1)))
    # factor'^-1 noise has the covariance (factor factor')^-1.
    spread = torch.linalg.solve(factor.T, noise)[:, 0] / math.sqrt(b0 + count)
    return count * mean / (b0 + count) + spread, precision


def draw_independent(rows: Tensor, old_mean: Tensor, generator: np.random.Generator) -> tuple[Tensor, Tensor]:
    """A normal mean and a gamma precision for each column: mean `[D]` and diagonal precision `[D, D]` of rows `[a, D]`."""
    count, D = rows.shape
    squares = (rows - old_mean).square().sum(0) + old_mean.square()
    precision = torch.from_numpy(generator.standard_gamma(SHAPE + (count + 1.0) / 2.0, D)) / (RATE + squares / 2.0)
    noise = torch.from_numpy(generator.standard_normal(D))
    mean = rows.sum(0) / (count + 1.0) + noise / ((count + 1.0) * precision).sqrt()
    return mean, torch.diag(precision)
