"""The fused and the generic paths: they agree, the choice is automatic and visible, and runs repeat bit by bit."""

import gpytorch
import pytest
import torch
from conftest import SHAPE, Small, small

from gptf_gpytorch import GPTF, CollapsedELBO, CollapsedVariationalStrategy, InputError, KernelPrior, initialize
from gptf_gpytorch.distributed.threads import split

KERNELS = {
    "RBF": lambda: None,
    "RBF, one lengthscale, no scale": lambda: gpytorch.kernels.RBFKernel(),
    "Matern 1/2": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=0.5, ard_num_dims=6)),
    "Matern 3/2": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=6)),
    "Matern 5/2": lambda: gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)),
}


def evaluate(problem: Small, weights: torch.Tensor | None = None, **options: object) -> tuple[float, dict, str]:
    problem.model.zero_grad()
    problem.likelihood.zero_grad()
    mll = problem.mll(chunk_size=64, lambda_tolerance=1e-11, **options)
    bound = mll(problem.model.train()(problem.indices), problem.y, weights=weights)
    bound.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in problem.parameters().items()}
    return bound.item(), gradients, problem.model.variational_strategy.path


def assert_equal(found: tuple, expected: tuple) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-10)
    for name, gradient in expected[1].items():
        assert float((found[1][name] - gradient).norm()) <= 1e-8 * float(gradient.norm()), name


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "probit"])
@pytest.mark.parametrize("mean", [False, True], ids=["zero mean", "constant mean"])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_all_paths_agree(kernel: str, binary: bool, mean: bool, weighted: bool) -> None:
    constant = gpytorch.means.ConstantMean()
    problem = small(binary, n=200, kernel=KERNELS[kernel](), mean=constant if mean else None)
    if mean:
        constant.initialize(constant=0.3)
    weights = torch.rand(200, dtype=torch.float64) + 0.1 if weighted else None
    expected = evaluate(problem, weights, path="generic")
    assert expected[2] == "generic"
    for path, words in (("whitened", "whitened both ways"), ("explicit", "explicit S"), ("auto", "fused")):
        for compiled in (True, False):
            found = evaluate(problem, weights, path=path, compiled=compiled)
            assert words in found[2]
            assert found[2].endswith("compiled") == compiled
            assert_equal(found, expected)


@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "probit"])
def test_paths_agree_at_the_start_that_is_recommended(binary: bool) -> None:
    """Small factors: K_BB is nearly singular, and the automatic choice must be the accurate one."""
    problem = small(binary, n=2000)
    problem.model = GPTF(SHAPE, 2, 30)
    mll = problem.mll()
    initialize(mll, problem.indices, problem.y)
    expected = evaluate(problem, path="generic")
    for compiled in (True, False):
        found = evaluate(problem, compiled=compiled)
        assert "whitened both ways" in found[2]
        assert_equal(found, expected)


def test_the_explicit_form_is_chosen_where_the_conditioning_allows_it(gaussian: Small) -> None:
    assert evaluate(gaussian)[2] == "fused RBF, explicit S, compiled"
    assert "fused RBF, explicit S, compiled" in repr(gaussian.model.variational_strategy)


def test_one_bound_may_change_its_path(gaussian: Small) -> None:
    """As training moves the inducing points, the conditioning may cross the limit of the explicit form."""
    mll = gaussian.mll(chunk_size=64)
    found = []
    for mll.path in ("explicit", "whitened", "explicit"):
        found.append(mll(gaussian.model.train()(gaussian.indices), gaussian.y).item())
    assert found[0] == found[2]
    assert found[1] == pytest.approx(found[0], rel=1e-12)


def test_the_same_threads_give_the_same_bits_and_others_the_same_numbers(either: Small) -> None:
    before, found = torch.get_num_threads(), []
    try:
        for threads in (2, 2, 1):
            torch.set_num_threads(threads)
            either.model.variational_strategy._variational_distribution.variational_mean.zero_()
            found.append(evaluate(either))
            assert torch.get_num_threads() == threads, "the caller's setting must be respected and restored"
    finally:
        torch.set_num_threads(before)
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in found[0][1])
    assert_equal(found[2], found[0])


def test_an_error_in_a_chunk_reaches_the_caller_and_the_threads_are_restored() -> None:
    before = torch.get_num_threads()

    def job(chunks: list[int]) -> int:
        if 7 in chunks:
            raise InputError("chunk 7")
        return len(chunks)

    with pytest.raises(InputError, match="chunk 7"):
        list(split(job, list(range(8)), True))
    assert torch.get_num_threads() == before
    assert sum(split(lambda chunks: len(chunks), list(range(5)), True)) == 5


class Squared(gpytorch.kernels.RBFKernel):
    """A subclass that computes something else."""

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, **params: object) -> torch.Tensor:
        return super().forward(x1, x2, **params) ** 2


@pytest.mark.parametrize(
    "kernel",
    [
        Squared(),
        gpytorch.kernels.RQKernel(),
        gpytorch.kernels.RBFKernel(active_dims=[0, 1]),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()) + gpytorch.kernels.PolynomialKernel(power=1),
        gpytorch.kernels.ScaleKernel(gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_every_other_kernel_takes_the_generic_path(kernel: gpytorch.kernels.Kernel) -> None:
    problem = small(False, kernel=kernel)
    assert evaluate(problem)[2] == "generic"
    with pytest.raises(InputError, match=f"needs a KernelPrior model.*Got {type(kernel).__name__} in a GPTF"):
        evaluate(problem, path="explicit")


def test_another_mean_takes_the_generic_path() -> None:
    assert evaluate(small(False, mean=gpytorch.means.LinearMean(6)))[2] == "generic"


class Own(gpytorch.models.ApproximateGP):
    def __init__(self, points: torch.Tensor) -> None:
        super().__init__(CollapsedVariationalStrategy(self, points))
        self.mean_module, self.covar_module = gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel()

    def forward(self, x: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(2.0 * x))


class Known(KernelPrior, Own):
    pass


def test_plain_models_take_the_fused_path_if_their_prior_is_known() -> None:
    torch.manual_seed(0)
    x, y, points = torch.randn(50, 2).double(), torch.randn(50).double(), torch.randn(5, 2).double()
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    for model, path in ((Own(points).double(), "generic"), (Known(points).double(), "fused")):
        mll = CollapsedELBO(likelihood, model, num_data=50)
        mll(model(x), y).backward()
        assert model.variational_strategy.path.startswith(path)
    known = Known(points).double()
    x.requires_grad_()
    for path in ("generic", "auto"):
        x.grad = None
        mll = CollapsedELBO(likelihood, known, num_data=50, path=path)
        mll(known(x), y).backward()
        if path == "generic":
            expected = x.grad.clone()
    assert float((x.grad - expected).norm() / expected.norm()) < 1e-10
