"""Peers: what a user would otherwise evaluate on the same inputs, the same kernel and the same data.

Each peer makes ready what does not change, and gives a function that is one evaluation of the bound and its gradient.
It returns what is compared with ours before anything is timed: a peer that computes something else is no peer.
"""

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gpytorch
import numpy as np
import torch
from gpytorch.kernels import InducingPointKernel
from threadpoolctl import ThreadpoolController
from torch import Tensor

from gptf_gpytorch import CollapsedELBO


class Evaluation(NamedTuple):
    """The bound with the factors' prior, divided by N, and its gradient where it is largest."""

    bound: float
    factors: list[Any]  # [d_k, r_k] for each mode
    points: Any  # [p, D]


Run = Callable[[], Evaluation]
Peer = Callable[[CollapsedELBO, Tensor, Tensor], Run]


def ours(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Run:
    """The bound of this package."""

    def run() -> Evaluation:
        mll.zero_grad()
        bound = mll(mll.model.train()(indices), y)
        bound.backward()
        return _torch(bound, mll.model.factors.weights, mll.strategy.inducing_points)

    return run


def naive(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Run:
    """The same whitened bound in dense torch, differentiated by autograd: all N features at once."""
    model, likelihood = mll.model, mll.likelihood

    def run() -> Evaluation:
        mll.zero_grad()
        x, B = model.factors(indices), model.variational_strategy.inducing_points
        eye = torch.eye(len(B), dtype=x.dtype)
        L = torch.linalg.cholesky(model.covar_module(B).to_dense() + model.variational_strategy.jitter_val * eye)
        w = torch.linalg.solve_triangular(L, model.covar_module(B, x).to_dense(), upper=False)
        beta = likelihood.noise.squeeze().reciprocal()
        W, c = w @ w.T, w @ y
        R = torch.linalg.cholesky(eye + beta * W)
        fit = y @ y - beta * torch.linalg.solve_triangular(R, c.unsqueeze(-1), upper=False).square().sum()
        trace = model.covar_module(x, diag=True).sum() - W.trace()
        bound = -R.diagonal().log().sum() - 0.5 * beta * (trace + fit) + 0.5 * len(y) * (beta / (2 * torch.pi)).log()
        bound = (bound + model.factors.log_prior()) / len(y)
        bound.backward()
        return _torch(bound, model.factors.weights, B)

    return run


def sgpr(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Run:
    """GPyTorch's SGPR with the factors as an embedding, and our jitter: its own comes only where Cholesky fails."""
    model, likelihood = mll.model, mll.likelihood

    class Jittered(InducingPointKernel):
        @property
        def _inducing_mat(self) -> Tensor:
            K_BB = super()._inducing_mat
            return K_BB + mll.strategy.jitter_val * torch.eye(len(K_BB), dtype=K_BB.dtype)

    class SGPR(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(model.factors(indices).detach(), y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            points = model.variational_strategy.inducing_points.detach().clone()
            self.covar_module = Jittered(model.covar_module, inducing_points=points, likelihood=likelihood)

        def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    exact = SGPR().train()
    objective = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, exact)

    def run() -> Evaluation:
        mll.zero_grad()
        exact.zero_grad()
        x = model.factors(indices)
        exact.set_train_data(x, y, strict=False)
        bound = objective(exact(x), y) + model.factors.log_prior() / len(y)
        bound.backward()
        return _torch(bound, model.factors.weights, exact.covar_module.inducing_points)

    return run


def svgp(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Run:
    """GPyTorch's SVGP with the factors as an embedding: one pass over all entries in our chunks, gradients added up.

    q(v) is at its optimum, where the bound is the collapsed one and its gradient too. GPyTorch adds the jitter to the
    variance of f as well; the constant that this takes from the bound is given back.
    """
    ours(mll, indices, y)()
    model = mll.model.to_svgp().train()
    objective = gpytorch.mlls.VariationalELBO(mll.likelihood, model, num_data=len(y))
    jitter = mll.strategy.jitter_val

    def run() -> Evaluation:
        model.zero_grad()
        mll.likelihood.zero_grad()
        bound = model.factors.log_prior() / len(y)
        bound.backward()
        for part, values in zip(indices.split(mll.chunk_size), y.split(mll.chunk_size), strict=True):
            share = objective(model(part), values) * (len(values) / len(y))
            share.backward()
            bound = bound.detach() + share.detach()
        bound = bound + 0.5 * jitter / mll.likelihood.noise.detach().squeeze()
        return _torch(bound, model.factors.weights, model.variational_strategy.inducing_points)

    return run


def gpflow_sgpr(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Run:
    """GPflow's SGPR in a compiled graph, from the factor tables to the gradients of the tables: nothing is left out."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tf, gpflow = importlib.import_module("tensorflow"), importlib.import_module("gpflow")
    threads = tf.config.threading
    if threads.get_intra_op_parallelism_threads() != torch.get_num_threads():
        # Only possible before TensorFlow's first operation; it says so itself if this is too late.
        threads.set_intra_op_parallelism_threads(torch.get_num_threads())
        threads.set_inter_op_parallelism_threads(torch.get_num_threads())
    values = _parameters(mll)
    tables = [tf.Variable(table) for table in values["tables"]]
    kernel = gpflow.kernels.SquaredExponential(variance=values["outputscale"], lengthscales=values["lengthscale"])
    likelihood = gpflow.likelihoods.Gaussian(variance=values["noise"])
    mean, points = gpflow.functions.Zero(), gpflow.inducing_variables.InducingPoints(values["points"])
    columns = [tf.constant(column) for column in indices.T.numpy()]
    targets = tf.constant(y.unsqueeze(-1).numpy())
    config = gpflow.config.Config(jitter=mll.strategy.jitter_val, float=np.float64)
    hyperparameters = (*kernel.trainable_variables, *likelihood.trainable_variables)

    @tf.function  # type: ignore[untyped-decorator]
    def evaluate() -> Any:
        with tf.GradientTape() as tape, gpflow.config.as_context(config):
            x = tf.concat([tf.gather(table, column) for table, column in zip(tables, columns, strict=True)], axis=-1)
            model = gpflow.models.SGPR((x, targets), kernel, points, mean_function=mean, likelihood=likelihood)
            prior = -0.5 * tf.add_n([tf.reduce_sum(tf.square(table)) for table in tables])
            bound = (model.elbo() + prior) / len(y)
        gradients = tape.gradient(bound, [*tables, points.Z.unconstrained_variable, *hyperparameters])
        return bound, [tf.convert_to_tensor(gradient) for gradient in gradients]

    def run() -> Evaluation:
        bound, gradients = evaluate()
        return Evaluation(float(bound), [part.numpy() for part in gradients[: len(tables)]], gradients[len(tables)])

    return run


def jax_jit(mll: CollapsedELBO, indices: Tensor, y: Tensor) -> Run:
    """The same whitened bound in dense jax.numpy, compiled, from the factor tables to their gradients."""
    # XLA sizes its pool of threads when it starts: by this, or else by the processors that the process may use.
    os.environ.setdefault("PJRT_NPROC", str(torch.get_num_threads()))
    jax, jnp = importlib.import_module("jax"), importlib.import_module("jax.numpy")
    jax.config.update("jax_enable_x64", True)
    cholesky, solve = jnp.linalg.cholesky, importlib.import_module("jax.scipy.linalg").solve_triangular
    parameters = jax.tree.map(jnp.asarray, _parameters(mll))
    cells, targets, jitter = jnp.asarray(indices.numpy()), jnp.asarray(y.numpy()), mll.strategy.jitter_val

    def kernel(a: Any, b: Any, now: dict[str, Any]) -> Any:
        a, b = a / now["lengthscale"], b / now["lengthscale"]
        squared = (a * a).sum(-1)[:, None] + (b * b).sum(-1) - 2.0 * a @ b.T
        return now["outputscale"] * jnp.exp(-0.5 * jnp.maximum(squared, 0.0))

    def bound(now: dict[str, Any], cells: Any, targets: Any) -> Any:
        x = jnp.concatenate([table[cells[:, mode]] for mode, table in enumerate(now["tables"])], axis=-1)
        B, beta, n = now["points"], 1.0 / now["noise"], len(targets)
        eye = jnp.eye(len(B))
        L = cholesky(kernel(B, B, now) + jitter * eye)
        w = solve(L, kernel(B, x, now), lower=True)
        W, c = w @ w.T, w @ targets
        R = cholesky(eye + beta * W)
        fit = targets @ targets - beta * (solve(R, c, lower=True) ** 2).sum()
        trace = n * now["outputscale"] - jnp.trace(W)
        prior = -0.5 * sum((table**2).sum() for table in now["tables"])
        half_log_det = jnp.log(jnp.diag(R)).sum()
        return (prior - half_log_det - 0.5 * beta * (trace + fit) + 0.5 * n * jnp.log(beta / (2.0 * jnp.pi))) / n

    compiled = jax.jit(jax.value_and_grad(bound))
    blas = ThreadpoolController().select(user_api="blas")  # its Cholesky and triangular solves are SciPy's

    def run() -> Evaluation:
        with blas.limit(limits=torch.get_num_threads()):
            value, gradients = jax.block_until_ready(compiled(parameters, cells, targets))
        return Evaluation(float(value), gradients["tables"], gradients["points"])

    return run


TORCH: dict[str, Peer] = {"naive autograd": naive, "GPyTorch SGPR": sgpr, "GPyTorch SVGP": svgp}
# What `pip install -e '.[peers]'` adds: the modules that a peer needs.
OPTIONAL: dict[str, tuple[Peer, Sequence[str]]] = {
    "GPflow SGPR": (gpflow_sgpr, ("tensorflow", "gpflow")),
    "JAX": (jax_jit, ("jax",)),
}


def available() -> tuple[dict[str, Peer], list[str]]:
    """The peers that can run here, and the names of those that cannot."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    found, missing = dict(TORCH), []
    for name, (peer, modules) in OPTIONAL.items():
        try:
            for module in modules:
                importlib.import_module(module)
        except ImportError:
            missing.append(name)
        else:
            found[name] = peer
    return found, missing


def detached(evaluation: Evaluation) -> Evaluation:
    """A copy that the next evaluation does not write to."""
    factors = [np.asarray(part).copy() for part in evaluation.factors]
    return Evaluation(evaluation.bound, factors, np.asarray(evaluation.points).copy())


def difference(found: Evaluation, expected: Evaluation) -> tuple[float, float]:
    """The relative difference of the bounds and, norm-wise and at worst, of the gradients of the tables and of B."""
    value = abs(found.bound - expected.bound) / abs(expected.bound)
    pairs = [*zip(found.factors, expected.factors, strict=True), (found.points, expected.points)]
    arrays = [(np.asarray(got), np.asarray(want)) for got, want in pairs]
    return value, max(float(np.linalg.norm(got - want) / np.linalg.norm(want)) for got, want in arrays)


def _torch(bound: Tensor, tables: Sequence[Tensor], points: Tensor) -> Evaluation:
    return Evaluation(bound.item(), [table.grad for table in tables], points.grad)


def _parameters(mll: CollapsedELBO) -> dict[str, Any]:
    """The parameters as arrays of their own, for other libraries."""
    kernel = mll.model.covar_module
    parts = {
        "points": mll.strategy.inducing_points,
        "lengthscale": kernel.base_kernel.lengthscale.squeeze(0),
        "outputscale": kernel.outputscale,
        "noise": mll.likelihood.noise.squeeze(),
    }
    arrays: dict[str, Any] = {name: part.detach().clone().numpy() for name, part in parts.items()}
    return {**arrays, "tables": [table.detach().clone().numpy() for table in mll.model.factors.weights]}
