"""Bayesian CP: a Gibbs sampler of the factors, whose hyperparameters are sampled too (smurff)."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import smurff
from scipy.special import ndtr
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.tools import columns
from gptf_gpytorch.data import resolve


@dataclass(frozen=True)
class Smurff:
    """CP with a normal-Wishart prior for each mode; labels have a probit link, real values an adaptive noise.

    smurff takes one value per cell: repeated cells are averaged, and averages of labels rounded. It saves its samples to a
    file, from which any cell can be predicted later. The file is deleted as soon as it is open, so it lives as long as
    the fit; it holds ``8 * samples * rank * sum(shape)`` bytes.

    :param burn_in: sweeps that are discarded.
    :param samples: sweeps that are averaged.
    :param signal_to_noise: the largest ratio that the noise of real values may adapt to.
    :param threads: of smurff. With more than one, the same seed gives another chain each time.
    """

    name: ClassVar[str] = "smurff"
    burn_in: int = 100
    samples: int = 200
    signal_to_noise: float = 10.0
    threads: int = 1

    def fit(self, task: Task) -> Fitted:
        train = resolve(task.train, "mean")
        y, centre, spread = train.values.double().numpy(), 0.0, 1.0
        if task.binary:
            values, noise = np.rint(y), smurff.ProbitNoise(0.5)
        else:
            centre, spread = float(y.mean()), float(y.std()) or 1.0
            values, noise = (y - centre) / spread, smurff.AdaptiveNoise(1.0, self.signal_to_noise)
        rows = [column.astype(np.int32) for column in columns(train.indices)]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "samples.hdf5"
            session = smurff.TrainSession(
                priors=["normal"] * len(train.shape),
                num_latent=task.rank,
                num_threads=self.threads,
                burnin=self.burn_in,
                nsamples=self.samples,
                seed=task.seed,
                verbose=0,
                save_name=str(path),
                save_freq=1,
            )
            session.setTrain(smurff.SparseTensor((values, rows), train.shape), noise)
            session.init()
            while session.step() is not None:
                pass
            file = h5py.File(path, "r")

        def predict(indices: Tensor) -> Array:
            link = ndtr if task.binary else np.asarray
            total = sum(link(f) for f in _functions(file, columns(indices), self.samples))
            return np.asarray(centre + spread * total / self.samples)

        return Fitted(predict, task.binary)


def _functions(file: Any, rows: tuple[Array, ...], samples: int) -> Any:
    """The sums of products of factors `[n]`, sample by sample."""
    for sample in range(1, samples + 1):
        product: Any = 1.0
        for mode, at in enumerate(rows):
            product = product * file[f"sample_{sample}/latents/latents_{mode}"][()][at]  # [n, rank]
        yield product.sum(axis=1)
