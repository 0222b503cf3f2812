"""Special cases of the model are models that others sample: pairs alone are myFM's, products alone are smurff's."""

import numpy as np
import pytest
import torch

from gptf_gpytorch.distributed.communicator import SingleProcess
from gptf_gpytorch.training.chains import Chain, ChainData
from gptf_gpytorch.training.recipe import Runner, Schedule

SHAPE, ENTRIES, NEW = (25, 20, 15), 1800, 600


def entries(kind: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Indices and values with unit variance, half of it noise: biases and pairs, or products of all modes, of two factors."""
    generator = np.random.default_rng(seed)
    cells = generator.permutation(int(np.prod(SHAPE)))[: ENTRIES + NEW]
    indices = np.stack(np.unravel_index(cells, SHAPE), axis=1)
    factors = [generator.normal(size=(size, 3))[column] for size, column in zip(SHAPE, indices.T, strict=True)]
    if kind == "pairs":
        v = np.stack([part[:, 1:] for part in factors])
        signal = sum(part[:, 0] for part in factors) + 0.5 * ((v.sum(0) ** 2).sum(1) - (v**2).sum((0, 2)))
    else:
        signal = np.prod(factors, axis=0).sum(1)
    values = signal / signal.std() + generator.normal(size=len(cells))
    return indices, (values - values[:ENTRIES].mean()) / values[:ENTRIES].std()


def error_of(runner: Runner, indices: np.ndarray, values: np.ndarray, seed: int) -> float:
    data = ChainData.of(
        torch.from_numpy(indices[:ENTRIES]),
        torch.from_numpy(values[:ENTRIES]),
        None,
        SHAPE,
        binary=False,
        communicator=SingleProcess(),
    )
    chain = Chain(
        data,
        runner,
        Schedule(60, 160),
        samples=100,
        points=10,
        learnt_on=100,
        seed=seed,
        communicator=SingleProcess(),
    )
    while not chain.done:
        chain.advance()
    found = chain.sampled().moments(data.entities.rows(torch.from_numpy(indices[ENTRIES:])), binary=False)
    return float(np.sqrt(np.mean((found.mean.numpy() - values[ENTRIES:]) ** 2)))


def test_pairs_alone_are_a_factorisation_machine() -> None:
    myfm = pytest.importorskip("myfm", reason="myFM comes with the extra `experiments`")
    sklearn = pytest.importorskip("sklearn.preprocessing")
    indices, values = entries("pairs")
    one_hot = sklearn.OneHotEncoder(categories=[np.arange(size) for size in SHAPE]).fit(indices)
    machine = myfm.MyFMRegressor(rank=4, random_seed=0)
    X = one_hot.transform(indices)
    machine.fit(X[:ENTRIES], values[:ENTRIES], n_iter=160, n_kept_samples=100, group_shapes=list(SHAPE))
    theirs = float(np.sqrt(np.mean((machine.predict(X[ENTRIES:]) - values[ENTRIES:]) ** 2)))
    ours = [error_of(Runner(4, 0), indices, values, seed) for seed in (0, 1)]
    additive = error_of(Runner(0, 0), indices, values, 0)
    assert theirs < 0.95 * additive  # there is something to learn from pairs
    assert np.mean(ours) == pytest.approx(theirs, rel=0.02)


def test_products_alone_are_bayesian_cp() -> None:
    smurff = pytest.importorskip("smurff", reason="smurff comes with the extra `experiments`")
    indices, values = entries("products")

    def sparse(part: slice) -> object:
        return smurff.SparseTensor((values[part], [column.astype(np.int32) for column in indices[part].T]), SHAPE)

    session = smurff.TrainSession(
        priors=["normal"] * 3, num_latent=4, burnin=60, nsamples=100, seed=1, verbose=0, num_threads=1
    )
    session.addTrainAndTest(sparse(slice(ENTRIES)), sparse(slice(ENTRIES, None)), smurff.AdaptiveNoise(1.0, 10.0))
    theirs = float(np.sqrt(np.mean([(one.pred_avg - one.val) ** 2 for one in session.run()])))
    ours = [error_of(Runner(0, 4, prior="full"), indices, values, seed) for seed in (0, 1)]
    additive = error_of(Runner(0, 0), indices, values, 0)
    assert theirs < 0.95 * additive
    assert np.mean(ours) == pytest.approx(theirs, rel=0.03)
