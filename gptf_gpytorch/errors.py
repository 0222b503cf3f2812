"""The exceptions and warnings that a caller may want to catch."""


class GPTFError(Exception):
    """Everything this package raises on purpose."""


class InputError(GPTFError, ValueError):
    """An argument breaks a rule; the message states the rule, then what came."""


class DataError(InputError):
    """Data breaks a rule; the message states the rule, then the value, its column, its row or line, and the source."""


class NumericalError(GPTFError, ArithmeticError):
    """A computation left the numbers it can work with."""


class CholeskyError(NumericalError):
    """K_BB has no Cholesky factor, even with the largest jitter that was tried."""


class CheckpointError(GPTFError, OSError):
    """A checkpoint cannot be written, or is not what was saved."""


class InterruptedRunError(GPTFError):
    """A signal asked a run to stop; its state was saved if it has a folder.

    :param signal: the number of the signal.
    """

    def __init__(self, message: str, signal: int) -> None:
        super().__init__(message)
        self.signal = signal


class WorkerError(GPTFError, RuntimeError):
    """Another worker of the job is gone, or failed in a way that this package does not foresee."""


class TrackingError(GPTFError, RuntimeError):
    """A tracking server did not take what a run has to say; it is kept."""


class DeferredPosteriorError(GPTFError, RuntimeError):
    """In training mode a model returns its inputs, not moments; `CollapsedELBO` turns them into a bound."""


class StalePosteriorError(GPTFError, RuntimeError):
    """The parameters changed after q(v) was computed, so predictions would be wrong."""


class PrecisionWarning(UserWarning):
    """The bound is computed in less than double precision."""


class ApproximationWarning(UserWarning):
    """An answer is approximate, because the exact one would take too long."""


class LambdaWarning(UserWarning):
    """The variational parameter of the probit bound was not solved to its tolerance."""


class JitterWarning(UserWarning):
    """K_BB needed more jitter than was asked for."""


class DataWarning(UserWarning):
    """Data that is allowed, but may not be what was meant."""
