"""The compiled loops: their exponential, what they are used for, and entries in other forms of storage."""

import subprocess
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch
from conftest import Small, small

from gptf_gpytorch import InputError, marginals
from gptf_gpytorch.variational import paths
from gptf_gpytorch.variational.loops import log_Phi_and_rho
from gptf_gpytorch.variational.native import exp_


def exponential(values: np.ndarray) -> np.ndarray:
    found = values.copy()
    exp_(found, np.empty(7))
    return found


def test_the_exponential_is_right_to_two_units_in_the_last_place() -> None:
    generator = np.random.default_rng(0)
    x = np.concatenate(
        [[0.0, -0.0, 1e-300, -1e-17, 700.0], *(s * generator.normal(size=5000) for s in (1e-8, 1.0, 50.0))]
    )
    exact = np.exp(x.astype(np.longdouble))
    error = np.abs(exponential(x).astype(np.longdouble) - exact) / np.spacing(exact.astype(np.float64))
    assert error.max() <= 2.0


def test_the_exponential_at_its_ends() -> None:
    found = exponential(np.array([np.nan, -709.0, -1e9, -np.inf, -707.9]))
    assert np.isnan(found[0])
    assert np.all((found[1:4] >= 0) & (found[1:4] < 1e-300))
    assert found[4] == pytest.approx(np.exp(-707.9), rel=1e-12)


@pytest.mark.parametrize("z", [-1e8, -1e3, -40.0, -5.3, -1.0, -1e-9, 0.0, 1e-9, 0.7, 1.0, 5.3, 8.3, 30.0, 37.0])
def test_log_phi_and_its_slope_against_mpmath(z: float) -> None:
    with mpmath.workdps(400):
        exact = mpmath.mpf(z)
        tail = mpmath.erfc(-exact / mpmath.sqrt(2)) / 2
        value, slope = mpmath.log(tail), mpmath.npdf(exact) / tail
        found = log_Phi_and_rho(z)
        assert abs(found[0] - value) <= 4e-16 * abs(value)
        assert abs(found[1] - slope) <= 1e-15 * abs(slope)


WITHOUT_MKL = """
import pathlib, sys
if sys.argv[1] == "others":
    pathlib.Path.glob = lambda self, pattern: iter(())
from gptf_gpytorch.variational import native
import gpytorch, torch
from gptf_gpytorch import GPTF, CollapsedELBO
torch.manual_seed(0)
model = GPTF(shape=(9, 8, 7), rank=2, num_inducing=30)
indices = torch.stack([torch.randint(d, (500,)) for d in (9, 8, 7)], dim=-1)
mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=500, compiled=True, path="whitened")
bound = mll(model(indices), torch.randn(500, dtype=torch.float64))
bound.backward()
print(bound.item(), model.factors[0].grad.norm().item(), native._symbols()["gptf_exp"] == native._own_exp.address)
"""


def test_other_libraries_than_torchs_own_give_the_same_numbers() -> None:
    found = []
    for libraries in ("torch", "others"):
        job = subprocess.run(
            [sys.executable, "-c", WITHOUT_MKL, libraries], capture_output=True, check=True, timeout=300, text=True
        )
        found.append(job.stdout.split())
    assert found[1][2] == "True"
    assert float(found[0][0]) == pytest.approx(float(found[1][0]), rel=1e-13)
    assert float(found[0][1]) == pytest.approx(float(found[1][1]), rel=1e-11)


def test_not_a_number_in_the_factors_reaches_the_statistics(gaussian: Small) -> None:
    with torch.no_grad():
        gaussian.model.factors[0][gaussian.indices[3, 0], 0] = torch.nan
    with pytest.raises(Exception, match="NaN or infinity"):
        gaussian.mll(compiled=True)(gaussian.model(gaussian.indices), gaussian.y)


def test_without_numba_it_is_torch_and_asking_for_it_is_an_error(
    gaussian: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_numba", lambda: None)
    gaussian.mll()(gaussian.model(gaussian.indices), gaussian.y)
    assert gaussian.model.variational_strategy.path == "fused RBF, explicit S"
    with pytest.raises(InputError, match=r"needs Numba \(the extra `fast`\).*Got no Numba, cpu and torch.float64"):
        gaussian.mll(compiled=True)(gaussian.model(gaussian.indices), gaussian.y)
    fact = next(iter(paths.describe()))
    assert (fact.state, fact.remedy) == ("missing", "pip install 'gptf_gpytorch[fast]'")


def test_single_precision_takes_torch() -> None:
    problem = small(False)
    problem.model.float()
    with pytest.warns(UserWarning, match="float32"):
        problem.mll()(problem.model(problem.indices), problem.y)
    assert not problem.model.variational_strategy.path.endswith("compiled")


@pytest.mark.parametrize("compiled", [True, False])
def test_entries_may_be_memory_mapped_and_of_any_integer_type(either: Small, tmp_path: Path, compiled: bool) -> None:
    np.save(tmp_path / "indices.npy", either.indices.numpy().astype(np.int32))
    np.save(tmp_path / "values.npy", either.y.numpy().astype(np.float32))
    expected = found = None
    for mapped in (False, True):
        indices, y = either.indices, either.y.float().double()
        if mapped:  # copy-on-write: torch does not know of read-only memory
            indices, y = (
                torch.from_numpy(np.load(tmp_path / f"{name}.npy", mmap_mode="c")) for name in ("indices", "values")
            )
            assert indices.dtype == torch.int32
        either.model.zero_grad()
        either.model.variational_strategy._variational_distribution.variational_mean.zero_()
        bound = either.mll(chunk_size=16, compiled=compiled)(either.model.train()(indices), y)
        bound.backward()
        expected, found = found, (bound.item(), either.model.factors[0].grad.clone())
        moments = marginals(either.model, indices, chunk_size=16)
    assert expected[0] == found[0]
    assert torch.equal(expected[1], found[1])
    torch.testing.assert_close(moments.mean, either.model.eval()(either.indices).mean.detach(), rtol=1e-9, atol=1e-10)
