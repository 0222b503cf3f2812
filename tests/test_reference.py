"""The oracle is itself tested: against a dense Gaussian evidence, and against the 60-digit reference."""

import math

import mpmath
import numpy as np
import pytest
from conftest import Small
from mp_reference import Problem
from reference import fixed_point_step, theorem_1, theorem_2


def raw(small: Small) -> dict:
    kernel = small.model.covar_module
    values = {
        "U": [table.tolist() for table in small.model.factors.weights],
        "B": small.B.tolist(),
        "lengthscale": kernel.base_kernel.raw_lengthscale.flatten().tolist(),
        "outputscale": kernel.raw_outputscale.item(),
    }
    if hasattr(small.likelihood, "noise_covar"):
        values["noise"] = small.likelihood.noise_covar.raw_noise.item()
    return values


def test_inducing_points_at_the_inputs_give_the_evidence(gaussian: Small) -> None:
    X = np.unique(gaussian.X, axis=0)
    y = gaussian.y.numpy()[: len(X)]
    beta = 3.0
    K = np.array([[gaussian.k(a, b) for b in X] for a in X]) + np.eye(len(X)) / beta
    evidence = -0.5 * (np.linalg.slogdet(K)[1] + y @ np.linalg.solve(K, y) + len(y) * math.log(2 * math.pi))
    assert theorem_1(X, X, gaussian.k, y, beta, jitter=0.0) == pytest.approx(evidence, rel=1e-9)


def test_two_references_agree(either: Small) -> None:
    binary = not hasattr(either.likelihood, "noise_covar")
    floor = 0.0 if binary else float(either.likelihood.noise_covar.raw_noise_constraint.lower_bound)
    problem = Problem(raw(either), either.indices.tolist(), either.y.tolist(), 1e-6, floor)
    values = (either.X, either.B, either.k, either.y.numpy())
    lam = np.linspace(-0.3, 0.4, len(either.B))
    with mpmath.workdps(30):
        if binary:
            mine = theorem_2(*values, lam, 1e-6, either.U)
            theirs = problem.bound(problem.raw, mpmath.matrix(lam.tolist()))
        else:
            mine = theorem_1(*values, 1.0 / either.likelihood.noise.item(), 1e-6, either.U)
            theirs = problem.bound(problem.raw)
    assert mine == pytest.approx(float(theirs), rel=1e-11)


def test_the_fixed_point_is_where_the_reference_puts_the_optimum(probit: Small) -> None:
    values = (probit.X, probit.B, probit.k, probit.y.numpy())
    lam = np.zeros(len(probit.B))
    bounds = []
    for _ in range(150):
        lam = fixed_point_step(*values, lam, 1e-6)
        bounds.append(theorem_2(*values, lam, 1e-6))
    assert np.all(np.diff(bounds) >= -1e-9)
    with mpmath.workdps(60):
        exact = Problem(raw(probit), probit.indices.tolist(), probit.y.tolist(), 1e-6).solve_lambda(raw(probit))
    np.testing.assert_allclose(lam, [float(value) for value in exact], rtol=1e-6)
