from .data import TensorEntries, Vocabulary, read
from .distributed.communicator import Communicator, HorovodCommunicator, SingleProcess
from .errors import (
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
from .factors import LatentFactors
from .initialization import initialize, restart
from .kernels import FactorRBFKernel
from .likelihoods import ProbitLikelihood
from .models import GPTF, to_svgp
from .reporting.mlflow_tracker import MLflowTracker
from .tracking.tracker import Tracker
from .training.config import TrainConfig
from .training.fit import fit
from .training.saved import FittedModel
from .variational.distributions import CollapsedVariationalDistribution
from .variational.elbo import CollapsedELBO
from .variational.prediction import Marginals, marginals
from .variational.stationary import KernelPrior
from .variational.strategy import CollapsedVariationalStrategy
from .version import __version__

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
