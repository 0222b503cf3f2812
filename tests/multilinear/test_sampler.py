"""The sampler: compiled loops equal the reference, conditionals equal dense algebra, and the prior comes back (Geweke)."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from workers import ThreadCommunicator, Workers

from gptf_gpytorch.errors import NumericalError
from gptf_gpytorch.multilinear import labels, priors, reference, sampler
from gptf_gpytorch.multilinear.layout import Entities, Grouped
from gptf_gpytorch.multilinear.sampler import Observations, Sampler
from gptf_gpytorch.multilinear.state import Ranks, State


def observations(
    shape: tuple[int, ...],
    count: int,
    *,
    binary: bool = False,
    weighted: bool = False,
    covariates: int = 0,
    seed: int = 0,
    part: tuple[int, int] = (0, 1),
) -> Observations:
    generator = np.random.default_rng(seed)
    indices = torch.from_numpy(np.stack([generator.integers(size, size=count) for size in shape], axis=1))
    values = torch.from_numpy(generator.normal(size=count))
    entities = Entities.among(indices, shape)
    x = torch.from_numpy(generator.normal(size=(count, covariates)))
    weights = torch.from_numpy(generator.uniform(0.5, 3.0, count)) if weighted else None
    rank, size = part
    mine = slice(count * rank // size, count * (rank + 1) // size)
    return Observations(
        entities,
        entities.rows(indices)[mine],
        (values > 0).double()[mine] if binary else values[mine],
        x[mine],
        None if weights is None else weights[mine],
        binary,
        mine.start,
        count,
    )


def swept(chain: Sampler, sweeps: int = 3) -> State:
    state = chain.start()
    for number in range(1, sweeps + 1):
        chain.sweep(state, number)
    return state


CASES = [
    {"shape": (7, 5, 6), "ranks": Ranks(2, 3)},
    {"shape": (7, 5, 6), "ranks": Ranks(0, 0)},
    {"shape": (7, 5, 6), "ranks": Ranks(0, 2), "weighted": True},
    {"shape": (9, 4), "ranks": Ranks(3, 0), "binary": True, "covariates": 2},
    {"shape": (3, 4, 2, 3, 2, 2, 3, 2), "ranks": Ranks(2, 1), "binary": True, "weighted": True},
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("prior", ["full", "independent"])
def test_compiled_loops_equal_the_reference(case: dict, prior: priors.PriorName) -> None:
    pytest.importorskip("numba", reason="the compiled loops are an extra")
    case = dict(case)
    ranks = case.pop("ranks")
    data = observations(count=90, **case)
    fast, plain = (swept(Sampler(data, ranks, prior=prior, seed=3, compiled=compiled)) for compiled in (True, False))
    for name, tensor in plain.tensors().items():
        torch.testing.assert_close(getattr(fast, name), tensor, rtol=1e-9, atol=1e-9, msg=name)


def test_the_same_seed_gives_the_same_bits_and_another_one_does_not() -> None:
    data = observations((7, 5, 6), 90)
    one, again, other = (swept(Sampler(data, Ranks(2, 2), seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(tensor, getattr(again, name)) for name, tensor in one.tensors().items())
    assert not torch.equal(one.rows, other.rows)


@pytest.mark.parametrize("binary", [False, True])
def test_workers_draw_the_chain_of_one_process(binary: bool) -> None:
    options = {"binary": binary, "weighted": True, "covariates": 1}

    def job(comm: ThreadCommunicator) -> State:
        part = (comm.rank, comm.size)
        return swept(Sampler(observations((7, 5, 6), 91, part=part, **options), Ranks(2, 2), communicator=comm))

    alone = swept(Sampler(observations((7, 5, 6), 91, **options), Ranks(2, 2)))
    first, second = Workers(2).run(job)
    for name, tensor in alone.tensors().items():
        assert torch.equal(getattr(first, name), getattr(second, name)), name
        torch.testing.assert_close(getattr(first, name), tensor, rtol=1e-8, atol=1e-8, msg=name)


def test_a_row_has_the_conditional_of_dense_algebra() -> None:
    data = observations((4, 3, 5), 60, weighted=True)
    ranks, mode, beta = Ranks(2, 1), 1, 1.7
    chain = Sampler(data, ranks, compiled=False)
    state = swept(chain, 2)
    grouped = Grouped.by_mode(data.rows, mode, 4, 7)
    T = torch.diag(torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)) + 0.1
    m = torch.tensor([0.5, -0.2, 0.1, 0.3], dtype=torch.float64)
    old = state.rows[4:7]
    residual = data.values - chain.values(state)
    S, t = reference.statistics(grouped, state.rows, mode, 2, data.weights, residual)
    mean = reference.draw(S, t, beta, T, m, torch.zeros(3, 4, dtype=torch.float64), old)
    for entity in range(3):
        mine = (data.rows[:, mode] == 4 + entity).nonzero()[:, 0]
        P, b = T.clone(), T @ m
        for j in mine.tolist():
            others = [state.rows[row] for place, row in enumerate(data.rows[j].tolist()) if place != mode]
            h = torch.cat([torch.ones(1), others[0][1:3] + others[1][1:3], others[0][3:] * others[1][3:]]).double()
            rest = data.values[j] - residual[j] - old[entity] @ h
            o = data.weights[j]
            P, b = P + beta * o * torch.outer(h, h), b + beta * o * h * (data.values[j] - rest)
        torch.testing.assert_close(mean[entity], torch.linalg.solve(P, b), rtol=1e-9, atol=1e-9)
        # The noise goes through the Cholesky factor of the precision: draws have the covariance P^-1.
        unit = [
            reference.draw(S, t, beta, T, m, torch.eye(4, dtype=torch.float64)[i].repeat(3, 1), old)[entity]
            - mean[entity]
            for i in range(4)
        ]
        A = torch.stack(unit, dim=1)
        torch.testing.assert_close(A @ A.T, torch.linalg.inv(P), rtol=1e-8, atol=1e-10)


def test_latent_values_are_truncated_normal() -> None:
    uniform = torch.linspace(0.01, 0.99, 50, dtype=torch.float64)
    for f in (-40.0, -8.0, -5.9, -1.0, 0.0, 2.5, 9.0):
        for side in (-1.0, 1.0):
            z = labels.latent_values(torch.full((50,), side), torch.full((50,), f, dtype=torch.float64), uniform)
            assert bool((side * z >= 0).all())
            m = side * f
            # P(s z > x) = Phi(m - x) / Phi(m) is the uniform number.
            tail = torch.special.log_ndtr(m - side * z) - torch.special.log_ndtr(torch.tensor(m, dtype=torch.float64))
            torch.testing.assert_close(tail.exp(), uniform, rtol=1e-6, atol=1e-9)


def test_the_full_prior_is_normal_wishart() -> None:
    generator = np.random.default_rng(0)
    rows = torch.from_numpy(generator.normal(size=(30, 3)) @ np.diag([1.0, 2.0, 0.5]) + 0.3)
    draws = [priors.draw_full(rows, generator) for _ in range(4000)]
    means, precisions = torch.stack([d[0] for d in draws]), torch.stack([d[1] for d in draws])
    centred = rows - rows.mean(0)
    mean = rows.mean(0)
    scale = torch.linalg.inv(
        torch.eye(3, dtype=torch.float64) + centred.T @ centred + 2.0 * 30 / 32 * torch.outer(mean, mean)
    )
    expected = 33 * scale
    torch.testing.assert_close(precisions.mean(0), expected, rtol=0.05, atol=0.02 * float(expected.max()))
    torch.testing.assert_close(means.mean(0), 30 * mean / 32, rtol=0, atol=0.02)
    found = precisions[:, 0, 0].numpy()
    assert scipy.stats.kstest(found / float(scale[0, 0]), scipy.stats.chi2(33).cdf).pvalue > 1e-3


@pytest.mark.parametrize("binary", [False, True])
def test_geweke_the_prior_comes_back(binary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw data given parameters and parameters given data in turn: the marginals of the parameters are those of the prior."""
    monkeypatch.setattr(sampler, "FLAT", 1.0)
    # Lighter tails than the prior that models have, or a chain would stay in them for thousands of sweeps.
    monkeypatch.setattr(priors, "SHAPE", 3.0)
    monkeypatch.setattr(priors, "RATE", 3.0)
    data = observations((2, 2, 2), 4, binary=binary, covariates=1)
    ranks = Ranks(1, 1)
    chain, generator = Sampler(data, ranks, compiled=False), np.random.default_rng(5)
    state, rounds = chain.start(), 3000
    found = np.empty((rounds, 4))
    for number in range(rounds):
        f = chain.values(state)
        noise = torch.from_numpy(generator.standard_normal(len(f)))
        y = f + noise * float(state.noise_precision) ** -0.5
        data.values.copy_((y > 0).double() if binary else y)
        chain.sweep(state, number + 1)
        found[number] = [
            float(state.coefficients[0]) < 0.5,
            float(state.coefficients[1]) < -0.5,
            float(state.precisions[0, 1, 1]) < 0.9,
            float(state.noise_precision) < 0.9,
        ]
    gamma = scipy.stats.gamma(3.0, scale=1.0 / 3.0).cdf(0.9)
    expected = [scipy.stats.norm.cdf(0.5), scipy.stats.norm.cdf(-0.5), gamma, 0.0 if binary else gamma]
    batches = found.reshape(50, -1, 4).mean(1)
    error = batches.std(0, ddof=1) / math.sqrt(50)
    assert np.all(np.abs(found.mean(0) - expected) < 4.0 * error + 1e-12), (found.mean(0), expected, error)


def test_the_noise_has_a_floor() -> None:
    """Values have unit variance, so that the noise is below 1.5 unless it is held at 2."""
    data = observations((4, 3, 5), 40)
    free, held = (swept(Sampler(data, Ranks(1, 1), least_noise=least)).noise_precision ** -0.5 for least in (0.0, 2.0))
    assert float(free) < 1.5
    assert float(held) == pytest.approx(2.0)


def test_nan_is_an_error_that_says_what_to_do() -> None:
    data = observations((4, 3, 5), 60)
    data.values[7] = math.nan
    chain = Sampler(data, Ranks(1, 1))
    with pytest.raises(NumericalError, match=r"standardise"):
        chain.sweep(chain.start(), 1)


def test_a_precision_without_a_cholesky_factor_is_an_error() -> None:
    S, t = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    T = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    with pytest.raises(NumericalError, match=r"row of entity 0 .* smaller ranks"):
        reference.draw(S, t, 1.0, T, torch.zeros(2).double(), torch.zeros(2, 2).double(), torch.zeros(2, 2).double())


def test_values_of_the_loops_are_those_of_the_model() -> None:
    data = observations((4, 3, 5), 60)
    state = swept(Sampler(data, Ranks(2, 2)))
    for j in (0, 13, 59):
        w = state.rows[data.rows[j].long()]
        pairs = sum(float(w[k, 1:3] @ w[other, 1:3]) for k in range(3) for other in range(k))
        products = float((w[0, 3:] * w[1, 3:] * w[2, 3:]).sum())
        expected = float(w[:, 0].sum()) + pairs + products
        assert float(sampler.multilinear(data.rows, state.rows, 2)[j]) == pytest.approx(expected, rel=1e-10)
