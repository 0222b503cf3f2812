"""InfTucker's evidence, by every other route: it is that of our own model on the full grid, as the paper says."""

import math

import gpytorch
import numpy as np
import pytest
import torch
from baselines.tensor_gp import KERNELS, KroneckerCovariance, TensorGP, along, log_evidence, probit_bound
from linear_operator.operators import DiagLinearOperator, KroneckerProductLinearOperator
from scipy.stats import multivariate_normal
from torch import Tensor

from gptf_gpytorch import GPTF, CollapsedELBO, FactorRBFKernel, ProbitLikelihood

SHAPE, RANKS = (5, 4, 3), (2, 3, 1)
CELLS = torch.cartesian_prod(*map(torch.arange, SHAPE))
SCALE, NOISE, MEAN = 1.7, 0.3, 0.4


def factors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(d, r, generator=generator, dtype=torch.float64) for d, r in zip(SHAPE, RANKS, strict=True)]


def lengthscales() -> Tensor:
    return torch.linspace(0.6, 1.4, sum(RANKS), dtype=torch.float64)


def by_mode(tables: list[Tensor]) -> list[Tensor]:
    """Each mode's own RBF-ARD matrix, from the formula; the scale is in the first."""
    scaled = [table / ell for table, ell in zip(tables, lengthscales().split(RANKS), strict=True)]
    kernels = [torch.exp(-0.5 * torch.cdist(x, x).square()) for x in scaled]
    return [SCALE * kernels[0], *kernels[1:]]


def concatenated(tables: list[Tensor]) -> Tensor:
    """The kernel of our model over the concatenated factors of all cells: nothing here knows of modes."""
    kernel = FactorRBFKernel(RANKS).double()
    kernel.lengthscale = lengthscales()
    x = torch.cat([table[CELLS[:, mode]] for mode, table in enumerate(tables)], dim=-1)
    return SCALE * kernel(x).to_dense().detach()


def values() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def signs() -> Tensor:
    return (values() > 0.3).double() * 2 - 1


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_the_evidence_is_that_of_a_dense_gp_over_concatenated_factors() -> None:
    tables, Y = factors(), values()
    found, alpha = log_evidence(Y, by_mode(tables), scalar(NOISE), scalar(MEAN))
    C = concatenated(tables) + NOISE * torch.eye(Y.numel(), dtype=torch.float64)
    centred = Y.reshape(-1) - MEAN
    # dense, by the Cholesky factor of the whole matrix
    dense = torch.distributions.MultivariateNormal(torch.full_like(centred, MEAN), C).log_prob(Y.reshape(-1))
    assert float(found) == pytest.approx(float(dense), rel=1e-9)
    # dense again, by its eigenvalues, in NumPy
    lam, Q = np.linalg.eigh(C.numpy())
    fit = ((Q.T @ centred.numpy()) ** 2 / lam).sum()
    assert float(found) == pytest.approx(-0.5 * (fit + np.log(2 * np.pi * lam).sum()), rel=1e-9)
    # and by linear_operator's Kronecker algebra
    product = KroneckerProductLinearOperator(*by_mode(tables))
    operator = product + DiagLinearOperator(torch.full_like(centred, NOISE))
    quad, log_det = operator.inv_quad_logdet(centred[:, None], logdet=True)
    third = -0.5 * (quad + log_det + Y.numel() * math.log(2 * math.pi))
    assert float(found) == pytest.approx(float(third), rel=1e-9)
    torch.testing.assert_close(alpha.reshape(-1), torch.linalg.solve(C, centred))


def our_model(likelihood: gpytorch.likelihoods.Likelihood, mean: float) -> CollapsedELBO:
    """Our model with the same factors and every cell as an inducing point."""
    prior_mean = gpytorch.means.ConstantMean()
    kernel = gpytorch.kernels.ScaleKernel(FactorRBFKernel(RANKS))
    model = GPTF(SHAPE, RANKS, len(CELLS), kernel=kernel, mean=prior_mean, jitter_val=1e-10)
    prior_mean.initialize(constant=mean)
    kernel.outputscale, kernel.base_kernel.lengthscale = SCALE, lengthscales()
    with torch.no_grad():
        for parameter, table in zip(model.factors.weights, factors(), strict=True):
            parameter.copy_(table)
        model.variational_strategy.inducing_points.copy_(model.factors(CELLS))
    return CollapsedELBO(likelihood, model, num_data=len(CELLS), lambda_tolerance=1e-10)


def test_our_bound_on_the_full_grid_is_inftuckers_evidence() -> None:
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = NOISE
    mll = our_model(likelihood, MEAN)
    mll(mll.model(CELLS), values().reshape(-1))
    ours = sum(float(term) for name, term in mll.terms.items() if name != "factor_prior")
    found, _ = log_evidence(values(), by_mode(factors()), scalar(NOISE), scalar(MEAN))
    assert ours == pytest.approx(float(found), rel=1e-7)


def test_our_probit_bound_on_the_full_grid_is_inftuckers() -> None:
    mll = our_model(ProbitLikelihood(), MEAN)
    mll(mll.model(CELLS), (signs().reshape(-1) + 1) / 2)
    ours = sum(float(term) for name, term in mll.terms.items() if name != "factor_prior")
    found, _, _ = probit_bound(signs(), by_mode(factors()), scalar(MEAN), None, passes=500)
    assert ours == pytest.approx(float(found), rel=1e-7)


def test_the_probit_bound_rises_with_every_pass_and_stays_below_the_evidence() -> None:
    kernels = [K[:2, :2] for K in by_mode(factors())]
    s = signs()[:2, :2, :2]
    bounds, z = [], None
    for _ in range(10):
        bound, _, z = probit_bound(s, kernels, scalar(MEAN), z, passes=1)
        bounds.append(float(bound))
    assert all(np.diff(bounds) > -1e-12)
    product = KroneckerProductLinearOperator(*kernels).to_dense() + torch.eye(8, dtype=torch.float64)
    flip = s.reshape(-1)
    # P(s z > 0): z ~ N(m, K + I) mirrored into the negative orthant
    covariance = (flip[:, None] * product * flip).numpy()
    evidence = multivariate_normal(-MEAN * flip.numpy(), covariance).logcdf(np.zeros(8))
    assert evidence - 2.0 < bounds[-1] < evidence  # the price of the augmentation


@pytest.mark.parametrize("binary", [False, True], ids=["values", "labels"])
def test_the_gradient_is_that_of_the_dense_evidence(binary: bool) -> None:
    def leaves() -> list[Tensor]:
        return [part.clone().requires_grad_() for part in (*factors(), scalar(NOISE), scalar(MEAN))]

    ours, dense = leaves(), leaves()
    if binary:
        bound, alpha, _ = probit_bound(signs(), by_mode(ours[:3]), ours[4], None, passes=400)
        latent = along([K.detach() for K in by_mode(ours[:3])], alpha) + alpha + MEAN  # z, held fixed
        noise = scalar(1.0)
    else:
        bound, _ = log_evidence(values(), by_mode(ours[:3]), ours[3], ours[4])
        latent, noise = values(), dense[3]
    bound.backward()
    C = KroneckerProductLinearOperator(*by_mode(dense[:3])).to_dense() + noise * torch.eye(len(CELLS)).double()
    mean = dense[4].expand(len(CELLS))
    torch.distributions.MultivariateNormal(mean, C).log_prob(latent.reshape(-1)).backward()
    for mine, theirs in zip(ours, dense, strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-7, atol=1e-9)


def test_equal_eigenvalues_do_no_harm() -> None:
    kernels = [torch.eye(d, dtype=torch.float64, requires_grad=True) for d in SHAPE]
    log_evidence(values(), kernels, scalar(NOISE), scalar(MEAN))[0].backward()
    assert all(bool(K.grad.isfinite().all()) for K in kernels)
    assert KroneckerCovariance(kernels, scalar(NOISE)).log_det().item() == pytest.approx(60 * math.log(1 + NOISE))


def test_eigenvalues_that_are_zero_are_left_out_and_nothing_changes() -> None:
    generator = torch.Generator().manual_seed(2)
    roots = [torch.randn(d, 2, generator=generator, dtype=torch.float64) for d in SHAPE]
    kernels = [(root @ root.T).requires_grad_() for root in roots]
    noise, mean = scalar(NOISE).requires_grad_(), scalar(MEAN).requires_grad_()
    assert KroneckerCovariance(kernels, noise).spectrum.shape == (2, 2, 2)
    found, alpha = log_evidence(values(), kernels, noise, mean)
    found.backward()
    dense = [tensor.detach().clone().requires_grad_() for tensor in (*kernels, noise, mean)]
    C = torch.kron(torch.kron(dense[0], dense[1]), dense[2]) + dense[3] * torch.eye(len(CELLS)).double()
    normal = torch.distributions.MultivariateNormal(dense[4].expand(len(CELLS)), C)
    expected = normal.log_prob(values().reshape(-1))
    expected.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    torch.testing.assert_close(alpha.reshape(-1), torch.linalg.solve(C, values().reshape(-1) - MEAN).detach())
    for mine, theirs in zip((*kernels, noise, mean), dense, strict=True):
        symmetric = 0.5 * (theirs.grad + theirs.grad.mT) if theirs.dim() else theirs.grad
        torch.testing.assert_close(mine.grad, symmetric, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_posterior_mean_is_that_of_a_dense_gp(kernel: str) -> None:
    Y = values()
    model = TensorGP(factors(), kernel, Y, binary=False)
    with torch.no_grad():
        kernels = model.covariances(model.tables())
        _, alpha, _ = model.bound(Y, model.tables(), None, 1)
        K = KroneckerProductLinearOperator(*kernels).to_dense()
        C = K + model.log_noise.exp() * torch.eye(len(K), dtype=torch.float64)
        expected = model.mean + K @ torch.linalg.solve(C, (Y - model.mean).reshape(-1))
        torch.testing.assert_close((model.mean + along(kernels, alpha)).reshape(-1), expected)
