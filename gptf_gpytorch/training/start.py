"""The state before the first step: a start, a few steps on the way, the best of several."""

import math
import time
from dataclasses import replace
from typing import Any

from gptf_gpytorch.initialization import initialize, restart
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training import optimizers
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.loop import Loop
from gptf_gpytorch.training.objective import BoundObjective
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.training.state import Progress
from gptf_gpytorch.variational.elbo import CollapsedELBO

# Steps after which the best of several starts is chosen, and until which the deviations of factors are held.
_SCREENING = 20
# A step of a run takes so many times the entries of a quick one.
_TIMES = 4


def started(objective: BoundObjective, config: TrainConfig, stop: StopRequest) -> tuple[Progress, list[float]]:
    """Where training begins, and the bounds that starts reached, if there were several.

    Factors with a posterior take some steps with small deviations first: free from the start, all of them may end as noise. Where
    every step will draw anew, these are quick ones (``start_steps``), in which biases wait, too, or L-BFGS takes them, with
    draws that stay; not with biases, to whose part it would fit the factors.
    """
    mll, began = objective.mll, time.monotonic()
    data: dict[str, Any] = {"inputs": objective.indices, "target": objective.values, "weights": objective.weights}
    start: dict[str, Any] = {"seed": config.seed, "scale": config.scale}
    quick, notes = config.start_steps > 0, list[str]()
    holds = config.draws > 0 and (quick or not (config.stochastic and config.biases))

    def train(mll: CollapsedELBO) -> None:
        factors = mll.model.factors
        held = [
            *factors.log_deviations,
            *(factors.biases if quick else ()),
            *(factors.log_bias_deviations if quick else ()),
        ]
        for table in held:
            table.requires_grad_(not holds)
        notes.extend(f"on the way to the first step, {note}" for note in _take_steps(objective, config, stop, began))
        for table in held:
            table.requires_grad_(True)

    bounds: list[float] = []
    if config.restarts > 1:
        bounds = restart(mll, **data, restarts=config.restarts, train=train, **start)
    else:
        initialize(mll, **data, **start)
        if holds:
            train(mll)
    if config.stochastic:
        objective.take(0)
    progress = Progress(objective(objective.vector()), seconds=time.monotonic() - began)
    progress.history.notes.extend(notes)
    return progress, bounds


def _take_steps(objective: BoundObjective, config: TrainConfig, stop: StopRequest, began: float) -> list[str]:
    """The steps that a start takes, with the parameters that need a gradient; what there is to note of them."""
    mll, quick = objective.mll, config.start_steps > 0
    steps = config.start_steps if quick else min(_SCREENING, config.max_iterations)
    short = replace(config, max_iterations=steps, validation=0.0, warmup=0.0, patience=0, checkpoint_seconds=math.inf)
    if config.stochastic and not config.biases and not quick:
        short = replace(short, optimizer="lbfgs")
    batch = max(config.inducing, config.batch // _TIMES) if quick else config.batch
    few = BoundObjective(mll, objective.indices, objective.values, objective.weights, batch)
    few.take(0)
    mll.forget = 1.0  # there is nothing to remember yet, and a line search needs the same function in all of its trials
    progress = Progress(few(few.vector()), seconds=time.monotonic() - began)
    mll.forget = config.forget if quick else 1.0
    starter = optimizers.make(short.optimizer, config.learning_rate)
    Loop(few, starter, short, progress, tracker=Tracker(), stop=stop).run()
    few.assign(progress.point.x)
    return progress.history.notes
