"""The multilinear factorisations: of the whole tensor with zeros where nothing is known, and of its entries alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import tensorly
from pyttb.cp_als import cp_als
from pyttb.ktensor import ktensor
from pyttb.sptensor import sptensor
from tensorly.decomposition import non_negative_parafac_hals, parafac, tucker
from tensorly.tenalg import multi_mode_dot
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.tools import WrongTaskError, choose, columns, dense, nonzeros

DENSE_CELLS = 20_000_000


def cp_fitted(weights: Array | None, factors: Sequence[Array], details: dict[str, Any] | None = None) -> Fitted:
    """Predictions of a CP decomposition: a sum over components of products over modes."""

    def predict(indices: Tensor) -> Array:
        product: Array = np.ones(factors[0].shape[1]) if weights is None else weights
        for factor, rows in zip(factors, columns(indices), strict=True):
            product = product * factor[rows]
        return np.asarray(product.sum(axis=-1))

    return Fitted(predict, details=details or {})


@dataclass(frozen=True)
class CP:
    """CP by alternating least squares on the whole tensor (tensorly)."""

    name: ClassVar[str] = "cp"
    iterations: int = 100
    tolerance: float = 1e-6
    max_cells: int = DENSE_CELLS

    def fit(self, task: Task) -> Fitted:
        weights, factors = parafac(
            dense(task, self.max_cells),
            task.rank,
            n_iter_max=self.iterations,
            tol=self.tolerance,
            random_state=task.seed,
        )
        return cp_fitted(weights, factors)


@dataclass(frozen=True)
class NonnegativeCP:
    """CP with factors that are not negative, by hierarchical alternating least squares (tensorly)."""

    name: ClassVar[str] = "nncp"
    iterations: int = 100
    tolerance: float = 1e-6
    max_cells: int = DENSE_CELLS

    def fit(self, task: Task) -> Fitted:
        if float(task.train.values.min()) < 0:
            low = float(task.train.values.min())
            raise WrongTaskError(f"Values of a non-negative factorisation must be at least 0. Got {low:g}.")
        tensor = dense(task, self.max_cells)
        # Its own start is a singular value decomposition, whose zeros HALS may never leave.
        generator = np.random.default_rng(task.seed)
        scale = (tensor.mean() / task.rank) ** (1 / tensor.ndim)
        start = [2 * scale * generator.random((d, task.rank)) for d in tensor.shape]
        weights, factors = non_negative_parafac_hals(
            tensor,
            task.rank,
            n_iter_max=self.iterations,
            init=tensorly.cp_tensor.CPTensor((np.ones(task.rank), start)),
            tol=self.tolerance,
        )
        return cp_fitted(weights, factors)


@dataclass(frozen=True)
class Tucker:
    """Tucker by higher-order orthogonal iteration on the whole tensor (tensorly)."""

    name: ClassVar[str] = "tucker"
    iterations: int = 100
    tolerance: float = 1e-6
    max_cells: int = DENSE_CELLS

    def fit(self, task: Task) -> Fitted:
        core, factors = tucker(
            dense(task, self.max_cells),
            _ranks(task),
            n_iter_max=self.iterations,
            tol=self.tolerance,
            random_state=task.seed,
        )
        return _tucker_fitted(core, factors)


@dataclass(frozen=True)
class HOSVD:
    """The truncated higher-order singular value decomposition of the whole tensor (tensorly's unfoldings and products).

    The bases come from Gram matrices: tensorly decomposes the unfoldings themselves, which have 40,000 columns here.
    """

    name: ClassVar[str] = "hosvd"
    max_cells: int = DENSE_CELLS

    def fit(self, task: Task) -> Fitted:
        tensor = dense(task, self.max_cells)
        bases = leading(tensor, _ranks(task))
        return _tucker_fitted(multi_mode_dot(tensor, bases, transpose=True), bases)


def leading(tensor: Array, ranks: Sequence[int]) -> list[Array]:
    """Each mode's leading left singular vectors `[d_k, r_k]`, through its Gram matrix, the largest first."""
    found = []
    for mode, rank in enumerate(ranks):
        unfolded = tensorly.unfold(tensor, mode)
        found.append(np.linalg.eigh(unfolded @ unfolded.T)[1][:, ::-1][:, :rank])
    return found


def _ranks(task: Task) -> list[int]:
    return [min(task.rank, d) for d in task.train.shape]


def _tucker_fitted(core: Array, factors: Sequence[Array]) -> Fitted:
    def predict(indices: Tensor) -> Array:
        rows = [factor[at] for factor, at in zip(factors, columns(indices), strict=True)]
        found = np.einsum("na,a...->n...", rows[0], core)
        for part in rows[1:]:
            found = np.einsum("na,na...->n...", part, found)
        return np.asarray(found)

    return Fitted(predict)


@dataclass(frozen=True)
class SparseCP:
    """CP by alternating least squares on the sparse tensor, whose other cells are 0 (pyttb).

    It is what GigaTensor computes, on one machine.
    """

    name: ClassVar[str] = "sparse_cp"
    iterations: int = 50
    tolerance: float = 1e-5

    def fit(self, task: Task) -> Fitted:
        found, shape = nonzeros(task.train), task.train.shape
        tensor = sptensor(found.indices.long().numpy(), found.values.double().numpy()[:, None], shape)
        generator = np.random.default_rng(task.seed)
        start = ktensor([generator.random((d, task.rank)) for d in shape])
        model, _, output = cp_als(
            tensor, task.rank, stoptol=self.tolerance, maxiters=self.iterations, init=start, printitn=0
        )
        details = {"iterations": int(output["iters"]), "fit": float(output["fit"])}
        return cp_fitted(model.weights, model.factor_matrices, details)


@dataclass(frozen=True)
class CP2:
    """CP of the training entries alone, the balanced ones: ridge-regularised alternating least squares.

    tensorly's masked CP fills the whole tensor in every iteration, which the large ones have no room for. Here every row of a
    factor matrix has normal equations of its own, summed over the row's entries.

    :param ridges: of which one is chosen on held-out training entries; the factors' squares are penalised with it.
    """

    name: ClassVar[str] = "cp2"
    iterations: int = 30
    ridges: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)

    def fit(self, task: Task) -> Fitted:
        ridge, details = choose(task, self.ridges, self._fit)
        return Fitted(self._fit(task, ridge).predict, details=details)

    def _fit(self, task: Task, ridge: float) -> Fitted:
        train = task.train
        rows, y = columns(train.indices), train.values.double().numpy()
        generator = np.random.default_rng(task.seed)
        scale = max(float(np.mean(y**2)), 1e-12) ** (0.5 / len(rows)) / task.rank**0.5
        factors = [scale * (1 + 0.5 * generator.standard_normal((d, task.rank))) for d in train.shape]
        places = np.arange(len(y) + 1)
        # [d_k, N]: which entries a row has, so that its product sums over them.
        members = [
            scipy.sparse.csr_matrix((np.ones(len(y)), at, places), shape=(len(y), d)).T.tocsr()
            for at, d in zip(rows, train.shape, strict=True)
        ]
        for _ in range(self.iterations):
            for mode, member in enumerate(members):
                others = [factor[at] for k, (factor, at) in enumerate(zip(factors, rows, strict=True)) if k != mode]
                product = np.prod(others, axis=0)  # [N, r]
                left = np.stack([member @ (product * column[:, None]) for column in product.T], axis=1)  # [d, r, r]
                right = member @ (product * y[:, None])  # [d, r]
                factors[mode] = np.linalg.solve(left + ridge * np.eye(task.rank), right[..., None])[..., 0]
        return cp_fitted(None, factors)
