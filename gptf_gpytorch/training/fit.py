"""``fit``: from entries and a configuration to a fitted model, alone or in lockstep with other workers."""

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.distributed.communicator import Communicator, SingleProcess
from gptf_gpytorch.distributed.elastic import ElasticCommunicator, WorkersChangedError
from gptf_gpytorch.distributed.verdicts import agree, together
from gptf_gpytorch.errors import DataWarning, InputError, InterruptedRunError
from gptf_gpytorch.tracking.tracker import Tracker, Trackers
from gptf_gpytorch.training import optimizers
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.history import Kept
from gptf_gpytorch.training.loop import Loop
from gptf_gpytorch.training.objective import BoundObjective, Scaling, mean_log_density
from gptf_gpytorch.training.problem import digest, divide, doubts
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.saved import KIND, FittedModel, build
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.training.start import started
from gptf_gpytorch.training.state import Progress, describe, snapshot, unpack
from gptf_gpytorch.training.store import Store
from gptf_gpytorch.training.timings import Stopwatch
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.version import __version__
from gptf_gpytorch.wording import option

# Of the root of the number of entries: how well lambda is solved in steps whose draws, which are others in every step, move its
# gradient by far more.
_LOOSE = 1e-3


def fit(
    entries: TensorEntries,
    config: TrainConfig | None = None,
    *,
    communicator: Communicator | None = None,
    tracker: Tracker | Sequence[Tracker] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    value_name: str = "value",
    **options: Any,
) -> Result:
    """Train a model.

    :param entries: all entries, the same on every worker: each takes its share.
    :param config: the run; keyword arguments of its names may be given instead.
    :param communicator: the workers; one process by default. With an
        :class:`~gptf_gpytorch.distributed.ElasticCommunicator` every step is committed in the memory of all workers,
        and whoever is left goes on from there; newcomers are taken in.
    :param tracker: who watches; only worker 0 speaks to them.
    :param output: a folder for checkpoints and, at the end, the model; None keeps nothing.
    :param resume: go on from the last checkpoint in ``output``.
    :param value_name: what the user calls the values; saved with the model.

    Example:
        >>> indices = torch.cartesian_prod(torch.arange(9), torch.arange(8))
        >>> entries = TensorEntries(indices, torch.sin(indices.sum(1).double()), shape=(9, 8))
        >>> result = fit(entries, rank=1, inducing=10, max_iterations=5)
        >>> len(result.history.steps)
        5

    """
    if config is not None and options:
        raise InputError(f"fit() takes a config or its fields. Got both: {', '.join(options)} beside a config.")
    config = TrainConfig.of(options, "fit()") if config is None else config
    communicator = SingleProcess() if communicator is None else communicator
    watchers = [] if tracker is None else [tracker] if isinstance(tracker, Tracker) else list(tracker)
    run = _Run(entries, config, communicator, watchers, output, resume, value_name)
    with ExitStack() as held:
        while True:
            try:
                together(communicator, lambda: run.store.take(held))
                return run.go()
            except WorkersChangedError as change:
                run.renew(str(change), held)
            except BaseException as error:
                run.fail(f"{type(error).__name__}: {error}")
                raise


class _Run:
    def __init__(
        self,
        entries: TensorEntries,
        config: TrainConfig,
        communicator: Communicator,
        watchers: list[Tracker],
        output: str | Path | None,
        resume: bool,
        value_name: str,
    ) -> None:
        config.check()
        if not len(entries):
            raise InputError("There must be entries to train on. Got none.")
        if resume and output is None:
            raise InputError("resume needs the run's folder: give output.")
        self.entries, self.config, self.communicator, self.watchers = entries, config, communicator, watchers
        self.output, self.resume = None if output is None else Path(output), resume
        self.store = Store(
            self.output,
            config,
            communicator,
            resume=resume,
            describe=lambda: describe(config, entries.shape, self.digest),
        )
        self.stop, self.stopwatch = StopRequest(), Stopwatch()
        self.value_name = value_name
        self._speaks = False  # whether this worker has begun to
        self._change = ""

    @property
    def tracker(self) -> Tracker:
        """Who watches worker 0."""
        return Trackers(self.watchers if self.communicator.rank == 0 else [])

    def renew(self, change: str, held: ExitStack) -> None:
        """Meet the workers of an elastic job again."""
        self._change = change
        with self.stop.listening():  # a signal is answered when they have met
            self.store.leave(held)
            cast(ElasticCommunicator, self.communicator).renew()

    def fail(self, reason: str) -> None:
        """Tell who watches, if they were told of the run."""
        if self._speaks:
            self.tracker.fail(reason)

    @cached_property
    def digest(self) -> str:
        """What tells the entries from others."""
        return digest(self.entries)

    @cached_property
    def parts(self) -> tuple[TensorEntries, TensorEntries | None]:
        """The entries to train on, and those held out."""
        return divide(self.entries, self.config)

    def go(self) -> Result:
        config, communicator, measure = self.config, self.communicator, self.stopwatch
        with measure("data"):
            agree(communicator, self._fingerprint())
            for text in doubts(self.entries, config):
                if communicator.rank == 0 and not self._change:
                    warnings.warn(text, DataWarning, stacklevel=3)
            train, held_out = self.parts
            mine = train.shard(communicator.rank, communicator.size)
            standardize = config.likelihood == "gaussian" and config.standardize
            scaling = Scaling.fitted(mine.values, communicator) if standardize else Scaling()
            mll = build(config, self.entries.shape, len(train), communicator)
            objective = BoundObjective(mll, mine.indices, scaling.scaled(mine.values), mine.weights, config.batch)
            looked_at = None if held_out is None else held_out.shard(communicator.rank, communicator.size)
            score = None if looked_at is None else partial(self._score, mll, looked_at, scaling)
        fall = config.max_iterations if config.stochastic else None
        optimizer = optimizers.make(config.optimizer, config.learning_rate, fall)
        # From here on a signal is answered between two evaluations, and at the end by finishing what is nearly done.
        with self.stop.listening():
            restored = self.store.restore()
            resumed = None if restored is None else unpack(*restored, mll, optimizer)
            if communicator.rank == 0 and not self._speaks:
                self.tracker.start(self._description(mll, 0 if held_out is None else len(held_out)))
                self._speaks = True
            if self.resume or self._change or resumed is not None:
                after = "before the first step" if resumed is None else f"after step {resumed.iteration}"
                change = f"{self._change} Workers that go on: {communicator.size}; " if self._change else ""
                self.tracker.note(f"{change}resumed {after}")
            try:
                with measure("start"):
                    progress = self._started(mll, objective, optimizer) if resumed is None else resumed
                if resumed is None:
                    self._note_points(mll, progress)
                if config.stochastic:
                    mll.lambda_tolerance, mll.forget = _LOOSE * math.sqrt(mll.num_data), config.forget
                reason = self._trained(objective, optimizer, progress, score)
            except InterruptedRunError as stopped:
                where = f" {self.output} holds it." if self.store.holds_a_state else " Nothing was saved."
                raise InterruptedRunError(f"{stopped}{where}", stopped.signal) from None
            with measure("finish"):
                kept = progress.iteration if progress.best is None else progress.best_iteration
                if config.stochastic:
                    objective.turn = kept  # the draws of the step that is kept, also where no step was left to take
                    mll.lambda_tolerance, mll.prior_weight, mll.forget = None, 1.0, 1.0
                bound = -objective.value(progress.point.x if progress.best is None else progress.best)
                progress.history.kept = Kept(kept, bound, None if score is None else score())
                mll.model.eval()
            fitted = FittedModel(
                mll,
                config,
                scaling,
                self.entries.names,
                self.entries.vocabularies,
                value_name=self.value_name,
                history=progress.history,
            )
            with measure("saving"):
                together(communicator, lambda: self._save_model(fitted))
            if self.stop.signal is not None:
                self.tracker.note("asked to stop when all steps were taken: the model is finished")
        timings = {**measure.seconds, "total": sum(measure.seconds.values())}
        result = Result(fitted, reason, progress.history, progress.seconds, timings, held_out)
        self.tracker.finish(result)
        return result

    def _trained(
        self,
        objective: BoundObjective,
        optimizer: optimizers.Optimizer,
        progress: Progress,
        score: Callable[[], float] | None,
    ) -> str:
        """Take the steps, and leave a checkpoint of the last one."""
        communicator, measure, mll = self.communicator, self.stopwatch, objective.mll
        before = progress.iteration if progress.history.steps else None

        def save(now: Progress) -> None:
            with measure("saving"):
                self.store.save(snapshot(mll, optimizer, now, self.config.patience))

        loop = Loop(
            objective,
            optimizer,
            self.config,
            progress,
            tracker=self.tracker,
            held_out=score,
            save=save,
            save_together=lambda now: together(communicator, lambda: save(now)),
            commit=lambda now: self.store.commit(lambda: snapshot(mll, optimizer, now, self.config.patience)),
            stop=self.stop,
        )
        with measure("steps"):
            reason = loop.run()
            if progress.iteration == before:
                self.tracker.note(f"no step is left to take: {reason}")
            else:
                together(communicator, lambda: save(progress))
        return reason

    def _score(self, mll: CollapsedELBO, held_out: TensorEntries, scaling: Scaling) -> float:
        with self.stopwatch("held_out"):
            return mean_log_density(mll, held_out, scaling)

    def _fingerprint(self) -> dict[str, Any]:
        """What must be the same on all workers for them to take the same steps."""
        return {
            "the version of gptf_gpytorch": __version__,
            "the version of torch": torch.__version__,
            **self.config.to_dict(),
            "resume": self.resume,
            "whether there is an output folder": self.output is not None,
            "the shape of the tensor": self.entries.shape,
            "the number of entries": len(self.entries),
            "the SHA-256 of the entries": self.digest,
        }

    def _started(self, mll: CollapsedELBO, objective: BoundObjective, optimizer: optimizers.Optimizer) -> Progress:
        config = self.config
        try:
            progress, bounds = started(objective, config, self.stop)
        except InterruptedRunError as stopped:
            if not self.communicator.elastic:  # there the others go on, and are somewhere else by now
                together(self.communicator, lambda: self.store.save(None))
            text = "Stopped by a signal on the way to the first step: a resumed run begins again."
            raise InterruptedRunError(text, stopped.signal) from None
        for note in progress.history.notes:
            self.tracker.note(note)
        if bounds:
            best = bounds.index(max(bounds))
            self.tracker.compared([{"seed": config.seed + place, "bound": bound} for place, bound in enumerate(bounds)])
            self.tracker.note(
                f"of {config.restarts} starts, seed {config.seed + best} has the best bound, {bounds[best]:.6g}"
            )
        return progress

    def _note_points(self, mll: CollapsedELBO, progress: Progress) -> None:
        points, wanted = mll.strategy.inducing_points.size(-2), self.config.inducing
        if points < wanted:
            text = f"{points} inducing points, one for each entry to train on, where {option('inducing')} is {wanted}"
            progress.history.notes.append(text)
            self.tracker.note(text)

    def _save_model(self, fitted: FittedModel) -> None:
        if self.output is not None and self.store.writes:
            fitted.save(self.output / KIND)

    def _description(self, mll: CollapsedELBO, held_out: int) -> dict[str, Any]:
        return {
            "config": self.config.to_dict(),
            "modes": dict(zip(self.entries.names, self.entries.shape, strict=True)),
            "entries": mll.num_data,
            "inducing": mll.strategy.inducing_points.size(-2),
            "held_out": held_out,
            "digest": self.digest,
            "workers": self.communicator.size,
            "output": None if self.output is None else str(self.output),
            # Whether what was said of this run before is about the same steps.
            "resumed": self.resume or bool(self._change),
        }
