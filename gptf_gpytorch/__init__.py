"""Nonlinear tensor factorization with Gaussian processes, as a GPyTorch plugin.

A tensor entry at (i_1, ..., i_K) is a Gaussian process function of the concatenated latent factors of its K entities::

    model = GPTF(shape=(203, 203, 200), rank=3, num_inducing=100)
    likelihood = ProbitLikelihood()
    mll = CollapsedELBO(likelihood, model, num_data=len(y))
    initialize(mll, indices, y)
    loss = -mll(model(indices), y)
    loss.backward()                              # any torch optimiser takes it from here
    mll.refresh()                                # q(v) at the final parameters
    probability = likelihood(model.eval()(indices)).probs

Reading order is import order: ``errors``; ``distributed`` (workers, the differentiable sum over them); ``data``
(entries, vocabularies, readers, sampling, splits); ``factors``, ``kernels``, ``likelihoods``; ``variational``
(statistics, bounds, lambda, strategy, ELBO); ``models``; ``initialization``; ``tracking``; ``training`` (``fit``,
optimisers, checkpoints); ``serving`` (predictions, recommendations, new entities);
``reporting`` (figures, MLflow); ``commands`` and ``cli``.
"""

from gptf_gpytorch.data import TensorEntries, Vocabulary, read
from gptf_gpytorch.distributed.communicator import Communicator, HorovodCommunicator, SingleProcess
from gptf_gpytorch.errors import (
    ApproximationWarning,
    CheckpointError,
    CholeskyError,
    DataError,
    DataWarning,
    DeferredPosteriorError,
    GPTFError,
    InputError,
    InterruptedRunError,
    JitterWarning,
    LambdaWarning,
    NumericalError,
    PrecisionWarning,
    StalePosteriorError,
    TrackingError,
    WorkerError,
)
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.initialization import initialize, restart
from gptf_gpytorch.kernels import FactorRBFKernel
from gptf_gpytorch.likelihoods import ProbitLikelihood
from gptf_gpytorch.models import GPTF, to_svgp
from gptf_gpytorch.reporting.mlflow_tracker import MLflowTracker
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.variational.distributions import CollapsedVariationalDistribution
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.prediction import Marginals, marginals
from gptf_gpytorch.variational.stationary import KernelPrior
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy
from gptf_gpytorch.version import __version__

__all__ = [
    "GPTF",
    "ApproximationWarning",
    "CheckpointError",
    "CholeskyError",
    "CollapsedELBO",
    "CollapsedVariationalDistribution",
    "CollapsedVariationalStrategy",
    "Communicator",
    "DataError",
    "DataWarning",
    "DeferredPosteriorError",
    "FactorRBFKernel",
    "FittedModel",
    "GPTFError",
    "HorovodCommunicator",
    "InputError",
    "InterruptedRunError",
    "JitterWarning",
    "KernelPrior",
    "LambdaWarning",
    "LatentFactors",
    "MLflowTracker",
    "Marginals",
    "NumericalError",
    "PrecisionWarning",
    "ProbitLikelihood",
    "SingleProcess",
    "StalePosteriorError",
    "TensorEntries",
    "Tracker",
    "TrackingError",
    "TrainConfig",
    "Vocabulary",
    "WorkerError",
    "__version__",
    "fit",
    "initialize",
    "marginals",
    "read",
    "restart",
    "to_svgp",
]
