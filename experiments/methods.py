"""The methods of the tables by name: the package's two, alone and on workers, and the baselines, imported when they are used."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from baselines.base import Array, Fitted, Method, Task
from torch import Tensor

from gptf_gpytorch import FittedModel, InputError, TrainConfig, fit
from gptf_gpytorch.health import pip_install
from gptf_gpytorch.serving.predictions import predict
from gptf_gpytorch.training.config import Likelihood
from gptf_gpytorch.training.history import History
from gptf_gpytorch.training.saved import KIND

JOB = Path(__file__).with_name("fit_on_workers.py")
REGISTRY = {
    "sampled": "methods:Sampled",
    "sampled_on_workers": "methods:SampledOnWorkers",
    "ours": "methods:Ours",
    "ours_on_workers": "methods:OursOnWorkers",
    "mean": "baselines.simple:Mean",
    "popularity": "baselines.simple:Popularity",
    "additive": "baselines.additive:AdditiveBiases",
    "counts_logistic": "baselines.additive:CountsLogistic",
    "cp": "baselines.multilinear:CP",
    "cp2": "baselines.multilinear:CP2",
    "nncp": "baselines.multilinear:NonnegativeCP",
    "hosvd": "baselines.multilinear:HOSVD",
    "tucker": "baselines.multilinear:Tucker",
    "sparse_cp": "baselines.multilinear:SparseCP",
    "inftucker": "baselines.inftucker:InfTucker",
    "inftuckerex_lite": "baselines.subtensors:InfTuckerExLite",
    "dintucker_lite": "baselines.subtensors:DinTuckerLite",
    "svgp_adam": "baselines.svgp:SVGPAdam",
    "logistic": "baselines.linear:Logistic",
    "linear_svm": "baselines.linear:LinearSVM",
    "fm": "baselines.linear:FactorizationMachine",
    "smurff": "baselines.bayesian_cp:Smurff",
}
RANKLESS = (
    *("mean", "popularity", "additive", "counts_logistic", "logistic", "linear_svm"),
    *("sampled", "sampled_on_workers"),  # the race chooses
)


def make(name: str, options: Mapping[str, Any]) -> Method:
    """The method of a name with options, which must be its own."""
    if name not in REGISTRY:
        raise InputError(f"A method must be one of {', '.join(REGISTRY)}. Got {name!r}.")
    module, _, kind = REGISTRY[name].partition(":")
    try:
        found = getattr(importlib.import_module(module), kind)
    except ModuleNotFoundError as error:
        raise InputError(f"{name} must find its library. Got no {error.name}: {pip_install('experiments')}") from error
    frozen = {option: tuple(value) if isinstance(value, list) else value for option, value in options.items()}
    try:
        method: Method = found(**frozen)
    except TypeError as error:
        raise InputError(f"{name} must be given its own options. Got {dict(options)}: {error}.") from error
    return method


class Ours:
    """The package's ``fit`` of the paper's method.

    :param ensemble: fits from this many seeds, whose predictions are averaged.
    :param options: fields of :class:`TrainConfig`, except the rank, the seed and the likelihood, which come from the task.
    """

    name: ClassVar[str] = "ours"
    trained: ClassVar[dict[str, Any]] = {"method": "paper"}

    def __init__(self, ensemble: int = 1, **options: Any) -> None:
        self.ensemble, self.config = ensemble, TrainConfig.of({**self.trained, **options}, self.name)

    def fit(self, task: Task) -> Fitted:
        """Train on the task's entries."""
        config = self._config(task)
        models = [self._fit(task, replace(config, seed=task.seed + member)) for member in range(self.ensemble)]

        def values(indices: Tensor) -> Array:
            found: Array = np.mean([predict(model, indices).mean.numpy() for model in models], axis=0)
            return found

        return Fitted(values, probabilities=task.binary, details=self._details(models[0]))

    def _config(self, task: Task) -> TrainConfig:
        return replace(self.config, rank=task.rank, seed=task.seed, likelihood=_likelihood(task))

    def _fit(self, task: Task, config: TrainConfig) -> FittedModel:
        return fit(task.train, config).fitted

    def _details(self, model: Any) -> dict[str, Any]:
        history = model.history or History()
        return {**_details(history), "series": _series(history)}


class Sampled(Ours):
    """The package's ``fit`` with its defaults, which has no rank: a race chooses the sizes of the model."""

    name: ClassVar[str] = "sampled"
    trained: ClassVar[dict[str, Any]] = {}

    def _config(self, task: Task) -> TrainConfig:
        return replace(self.config, seed=task.seed, likelihood=_likelihood(task))

    def _details(self, model: Any) -> dict[str, Any]:
        found = model.describe()
        return {name: found[name] for name in ("chains", "samples", "held_out")} | {"notes": model.history["notes"]}


class OnWorkers(Ours):
    """A fit in a job of ``horovodrun``, whose workers have a thread each.

    :param workers: of the job.
    :param entries: train on so many of the entries, drawn at random; on all by default.
    """

    def __init__(self, workers: int = 2, entries: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.workers, self.entries = workers, entries

    def _fit(self, task: Task, config: TrainConfig) -> FittedModel:
        train = task.train
        if self.entries is not None:
            if self.entries > len(train):
                raise InputError(f"entries must be at most the training set's {len(train)}. Got {self.entries}.")
            generator = torch.Generator().manual_seed(task.seed)
            train = train[torch.randperm(len(train), generator=generator)[: self.entries]]
        launcher = Path(sys.executable).with_name("horovodrun")
        if not launcher.exists():
            raise InputError(f"{self.name} must find horovodrun. Got none beside {sys.executable}: make horovod.")
        with tempfile.TemporaryDirectory() as folder:
            train.save(Path(folder) / "entries")
            (Path(folder) / "config.json").write_text(json.dumps(config.to_dict()))
            command = [str(launcher), "-np", str(self.workers), "--gloo", sys.executable, str(JOB), folder]
            done = subprocess.run(
                command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
            )
            if done.returncode:
                raise InputError(f"A job of {self.workers} workers must succeed. Got:\n{done.stdout}{done.stderr}")
            return FittedModel.load(Path(folder) / "run" / KIND)


class OursOnWorkers(OnWorkers):
    """The paper's method on workers."""

    name: ClassVar[str] = "ours_on_workers"


class SampledOnWorkers(OnWorkers, Sampled):
    """The default method on workers."""

    name: ClassVar[str] = "sampled_on_workers"


def _likelihood(task: Task) -> Likelihood:
    return "probit" if task.binary else "gaussian"


def _details(history: History) -> dict[str, Any]:
    """What was reached."""
    kept, steps = history.kept, history.steps
    found = {} if kept is None else {"bound": kept.bound, "held_out": kept.held_out, "kept": kept.iteration}
    seconds = np.diff([step.seconds for step in steps])
    speeds = [step.entries_per_second for step in steps]
    return {
        **found,
        "steps": len(steps),
        "seconds_per_step": float(np.median(seconds)) if len(seconds) else None,
        "entries_per_second": float(np.median(speeds)) if speeds else None,
        "notes": list(history.notes),
    }


def _series(history: History) -> dict[str, list[float]]:
    """The numbers of every step by name, as MLflow is told them."""
    names = ("bound", "seconds", "held_out")
    found = {name: [getattr(step, name) for step in history.steps] for name in names}
    return {name: values for name, values in found.items() if None not in values}
