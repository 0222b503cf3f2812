"""What a run is: one frozen, typed, validated description, with the same names in Python, in TOML and on the command line."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import gpytorch

from gptf_gpytorch.errors import InputError
from gptf_gpytorch.kernels import FactorRBFKernel
from gptf_gpytorch.wording import as_argument, option, spelled

Method = Literal["sampled", "paper"]
Effort = Literal["quick", "normal", "thorough"]
Likelihood = Literal["gaussian", "probit"]
OptimizerName = Literal["lbfgs", "gd", "adam"]
KernelName = Literal["rbf", "matern12", "matern32", "matern52"]
MeanName = Literal["constant", "zero"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """A run.

    :param method: ``sampled`` averages over samples of biases, pairs and products of factors, and of a Gaussian process, all
        chosen by a race on entries held out; ``paper`` maximises the collapsed bound of the paper's Gaussian process.
    :param likelihood: ``gaussian`` for real values, ``probit`` for values in {0, 1}.
    :param effort: how much work ``sampled`` counts: ``quick``, ``normal`` or ``thorough``.
    :param pairs: factors of an entity for products of two modes (``sampled``; chosen by the race if it is not given).
    :param products: factors of an entity for products of all modes (``sampled``; likewise).
    :param counts: whether the model is told how often entities occur (``sampled``; likewise).
    :param process: whether a Gaussian process takes part (``sampled``; likewise).
    :param sweeps: of each chain of the long run (``sampled``; chosen by the rule if it is not given).
    :param samples: kept of each chain (``sampled``; likewise).
    :param rank: factors of an entity: one number, or one for each mode.
    :param inducing: the number of inducing points, at most the number of entries.
    :param kernel: over the concatenated factors; each has a lengthscale for every factor.
    :param mean: of the Gaussian process.
    :param draws: 0 makes factors point estimates; with any other number each has a normal posterior, and the bound
        averages over so many draws for every entry. It costs as many times more, and is less prone to overfit. Adam draws
        anew in every step, so that 1 is enough: try ``learning_rate = 0.1`` and ``validation = 0``. The others keep the
        draws, and must be kept from fitting them by entries held out.
    :param biases: whether every entity has a bias, too, with a normal posterior; links may be predicted better with them.
    :param occurrences: whether how often its entities occur among the training entries is part of an entry's input; clicks
        may be predicted much better with it.
    :param optimizer: L-BFGS, gradient descent with a line search, or Adam.
    :param batch: entries, about, of a step of Adam with draws: another random part of all in every step, in turns. 0 takes
        all, as the other optimizers do.
    :param forget: with ``batch``, how much of q(v) a step forgets, to move to where its part of the entries wants it. 1 collapses
        the bound of each part as if it were all: for large parts. With 0.2, parts of a few thousand entries will do.
    :param start_steps: quick steps of Adam that come before those with ``batch``: each takes a quarter of it, at least as many
        entries as there are inducing points, while the deviations of factors, and biases, stay where they start. A run that
        is stopped among them begins again. 0 begins with twenty steps of L-BFGS, or, with biases, without.
    :param max_iterations: steps at most.
    :param learning_rate: of Adam; with draws it falls to a fiftieth until ``max_iterations``, also of a resumed run.
    :param warmup: the share of the steps of Adam, with draws, in which the divergence of factors from their prior grows from a
        twentieth to its full weight, so that they are not given up before they are of use; biases likewise. It may help much or
        harm: try it on entries held out.
    :param tolerance: stop when the bound of an entry has grown by less than this share of itself in ten steps; not looked
        at where steps draw anew.
    :param gradient_tolerance: stop when no component of the gradient of the bound of an entry is larger.
    :param max_seconds: stop after this time.
    :param validation: the share of the entries that is held out of training, for ``patience`` and the log.
    :param patience: stop when the held-out entries have not become more likely in this many steps, and keep the state
        where they were most likely. 0 does not look, nor does it without entries held out.
    :param balance: zeros to sample for each nonzero; 0 samples none.
    :param standardize: train on values with mean 0 and variance 1 (``gaussian``); predictions are in the user's units.
    :param restarts: starts from this many seeds, of which the best bound is kept.
    :param scale: the standard deviation of the factors at the start.
    :param seed: of everything that is random.
    :param chunk_size: entries that are mapped at a time.
    :param checkpoint_seconds: seconds between checkpoints, 0 for one after every step.
    :param keep: checkpoints that are kept, beside the best one.

    Example:
        >>> TrainConfig(method="paper", likelihood="probit", rank=5).inducing
        200

    """

    method: Method = "sampled"
    likelihood: Likelihood = "gaussian"
    effort: Effort = "normal"
    pairs: int | None = None
    products: int | None = None
    counts: bool | None = None
    process: bool | None = None
    sweeps: int | None = None
    samples: int | None = None
    rank: int | tuple[int, ...] = 3
    inducing: int = 200
    kernel: KernelName = "rbf"
    mean: MeanName = "constant"
    draws: int = 0
    biases: bool = False
    occurrences: bool = False
    optimizer: OptimizerName = "lbfgs"
    batch: int = 0
    forget: float = 1.0
    start_steps: int = 0
    max_iterations: int = 200
    learning_rate: float = 0.03
    warmup: float = 0.0
    tolerance: float = 1e-5
    gradient_tolerance: float = 1e-6
    max_seconds: float = math.inf
    validation: float = 0.1
    patience: int = 30
    balance: float = 0.0
    standardize: bool = True
    restarts: int = 1
    scale: float = 0.1
    seed: int = 0
    chunk_size: int = 3000
    checkpoint_seconds: float = 60.0
    keep: int = 2

    def __new__(cls, **values: Any) -> "TrainConfig":
        """Refuse what is no field, before Python does it without the nearest name."""
        _check_names(values, "TrainConfig()")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{option(name)} must be one of {', '.join(choices)}. Got {getattr(self, name)!r}.")
        if isinstance(self.rank, list | tuple):
            object.__setattr__(self, "rank", tuple(self.rank))
            if not self.rank:
                raise InputError(f"{option('rank')} must be one number, or one for each mode. Got none.")
            for rank in self.rank:
                _whole("rank", rank, 1, 1000)
        else:
            _whole("rank", self.rank, 1, 1000)
        for name, low in _WHOLE.items():
            _whole(name, getattr(self, name), low)
        for name, (least, most) in _REAL.items():
            value = getattr(self, name)
            right = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
            if not right:
                raise InputError(f"{option(name)} must be a number in [{least:g}, {most:g}]. Got {value!r}.")
            object.__setattr__(self, name, float(value))
        for name, low in _OPTIONAL.items():
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), low, 1_000_000)
        for name in ("biases", "occurrences", "standardize", "counts", "process"):
            missing = name in ("counts", "process") and getattr(self, name) is None
            if not missing and not isinstance(getattr(self, name), bool):
                raise InputError(f"{option(name)} must be true or false. Got {getattr(self, name)!r}.")

    def check(self) -> None:
        """What options ask of each other, once all of them are there: a file's may need those of the command line."""
        other = "paper" if self.method == "sampled" else "sampled"
        for item in fields(self):
            if item.name in _ONLY[other] and getattr(self, item.name) != item.default:
                raise InputError(
                    f"{option(item.name)} is an option of {option('method', other)}. Got it with {self.method!r}."
                )
        for name in ("batch", "warmup"):
            if getattr(self, name) and not self.stochastic:
                raise InputError(
                    f"{option(name)} is for {option('optimizer')} adam with {option('draws')} of at least 1. "
                    f"Got {self.optimizer} with {self.draws}."
                )
        for name, idle in (("forget", 1), ("start_steps", 0)):
            if getattr(self, name) != idle and not self.batch:
                raise InputError(
                    f"{option(name)} must be {idle} without {option('batch')}. Got {getattr(self, name):g}."
                )
        if 0 < self.batch < self.inducing:
            raise InputError(
                f"{option('batch')} must be 0 or at least {option('inducing')}, {self.inducing}. Got {self.batch}."
            )

    @property
    def stochastic(self) -> bool:
        """Whether every step draws factors anew, so that bounds differ by chance."""
        return self.draws > 0 and self.optimizer == "adam"

    def prior_weight(self, step: int) -> float:
        """What the divergence of factors is weighed with in a step that draws anew."""
        steps = self.warmup * self.max_iterations
        return 1.0 if step >= steps else 0.05 + 0.95 * step / steps

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str = "the configuration") -> "TrainConfig":
        """A configuration from names and values; an unknown name is an error that names the nearest known one."""
        _check_names(values, where)
        return cls(**values)

    @classmethod
    def read(cls, path: str | Path, **changes: Any) -> "TrainConfig":
        """A configuration from a TOML file, with changes; the file must hold by itself."""
        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"The configuration must be a readable file. Got {path}: {error.strerror}.") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(f"The configuration must be TOML. Got {path}: {error}.") from error
        table = next((name for name, value in values.items() if isinstance(value, dict)), None)
        if table is not None:
            raise InputError(f"{path} must hold its keys at the top, as in rank = 3, in no table. Got [{table}].")
        with spelled(as_argument):  # the file's own words, whoever reads it
            try:
                cls.of(values, str(path))
            except InputError as error:
                raise InputError(f"{error} It is in {path}." if str(path) not in str(error) else str(error)) from error
        return cls.of({**values, **changes}, where=str(path))

    def to_dict(self) -> dict[str, Any]:
        """Names and values that JSON can hold; ``of`` takes them back."""
        found = asdict(self)
        found["max_seconds"] = None if math.isinf(self.max_seconds) else self.max_seconds
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "the configuration") -> "TrainConfig":
        """What :meth:`to_dict` returned."""
        seconds = values.get("max_seconds")
        return cls.of({**values, "max_seconds": math.inf if seconds is None else seconds}, where)

    def make_kernel(self, ranks: tuple[int, ...]) -> gpytorch.kernels.Kernel:
        """The kernel of that name over the concatenated factors."""
        if self.kernel == "rbf":
            return gpytorch.kernels.ScaleKernel(FactorRBFKernel(ranks))
        nu = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}[self.kernel]
        return gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=nu, ard_num_dims=sum(ranks)))

    def make_mean(self) -> gpytorch.means.Mean:
        """The mean of that name."""
        return gpytorch.means.ConstantMean() if self.mean == "constant" else gpytorch.means.ZeroMean()


# A run's description says how to train: not on what, where to, or who watches.
_REST = "all else, as the output folder, is given beside them."
CHOICES: dict[str, tuple[str, ...]] = {
    "method": get_args(Method),
    "effort": get_args(Effort),
    "likelihood": get_args(Likelihood),
    "optimizer": get_args(OptimizerName),
    "kernel": get_args(KernelName),
    "mean": get_args(MeanName),
}
#: The options that only one of the methods has.
_ONLY: dict[str, frozenset[str]] = {
    "sampled": frozenset({"effort", "pairs", "products", "counts", "process", "sweeps", "samples"}),
    "paper": frozenset(
        {
            *("rank", "inducing", "kernel", "mean", "draws", "biases", "occurrences", "optimizer", "batch", "forget"),
            *("start_steps", "max_iterations", "learning_rate", "warmup", "tolerance", "gradient_tolerance"),
            *("max_seconds", "patience", "restarts", "scale", "chunk_size"),
        }
    ),
}
_OPTIONAL = {"pairs": 0, "products": 0, "sweeps": 3, "samples": 1}
_WHOLE = {
    "inducing": 1,
    "draws": 0,
    "batch": 0,
    "start_steps": 0,
    "max_iterations": 0,
    "patience": 0,
    "restarts": 1,
    "seed": 0,
    "chunk_size": 1,
    "keep": 1,
}
_REAL = {
    "learning_rate": (1e-12, 1e6),
    "forget": (1e-6, 1.0),
    "warmup": (0.0, 1.0),
    "tolerance": (0.0, 1.0),
    "gradient_tolerance": (0.0, math.inf),
    "max_seconds": (0.0, math.inf),
    "validation": (0.0, 0.9),
    "balance": (0.0, 1e6),
    "scale": (1e-12, 1e6),
    "checkpoint_seconds": (0.0, math.inf),
}


def _whole(name: str, value: Any, low: int, high: int = 2**63 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"from {low} on" if high == 2**63 - 1 else f"from {low} to {high}"
        raise InputError(f"{option(name)} must be a whole number {limit}. Got {value!r}.")


def _check_names(values: Mapping[str, Any], where: str) -> None:
    known = [field.name for field in fields(TrainConfig)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.7)
            hint = f" Did you mean {near[0]}?" if near else f" Known are {', '.join(known)}; {_REST}"
            raise InputError(f"{where} may hold only known keys. Got {name!r}.{hint}")
