"""``fit``: from entries and a configuration to a fitted model, alone or in lockstep with other workers."""

import math
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.distributed.communicator import Communicator, SingleProcess
from gptf_gpytorch.distributed.elastic import ElasticCommunicator, WorkersChangedError
from gptf_gpytorch.distributed.verdicts import agree, together
from gptf_gpytorch.errors import CheckpointError, DataWarning, InputError, InterruptedRunError
from gptf_gpytorch.initialization import initialize, restart
from gptf_gpytorch.tracking.tracker import Tracker, Trackers
from gptf_gpytorch.training import optimizers
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.commits import Commits
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.loop import Loop
from gptf_gpytorch.training.objective import BoundObjective, Scaling, mean_log_density
from gptf_gpytorch.training.problem import digest, divide, doubts
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.saved import KIND, FittedModel, build
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.training.state import Progress, check_same, describe, pack, unpack
from gptf_gpytorch.training.timings import Stopwatch
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.version import __version__
from gptf_gpytorch.wording import option

# Steps after which the best of several starts is chosen.
_SCREENING = 20


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
                together(communicator, lambda: run.hold(held))
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
        if not len(entries):
            raise InputError("There must be entries to train on. Got none.")
        if resume and output is None:
            raise InputError("resume needs the run's folder: give output.")
        self.entries, self.config, self.communicator, self.watchers = entries, config, communicator, watchers
        self.output, self.resume = None if output is None else Path(output), resume
        self.checkpoints = Checkpoints(Path() if self.output is None else self.output, config.keep)
        self.stop, self.stopwatch = StopRequest(), Stopwatch()
        self.value_name = value_name
        self.commits = Commits()
        # Whether this worker has begun to speak and to write; whether it took the folder over from another one.
        self._speaks = self._holds = self._takes_over = False
        self._change = ""

    @property
    def tracker(self) -> Tracker:
        """Who watches worker 0."""
        return Trackers(self.watchers if self.communicator.rank == 0 else [])

    @property
    def keeps(self) -> bool:
        """Whether this worker writes."""
        return self.output is not None and self.communicator.rank == 0

    def renew(self, change: str, held: ExitStack) -> None:
        """Meet the workers of an elastic job again: any of them may have to write afterwards."""
        self._change = change
        with self.stop.listening():  # a signal is answered when they have met
            if self.commits.last is not None and self.output is not None and self.output.is_dir():
                # On the disk first: not all may come to the meeting. If worker 0 is gone, whoever is the first writes.
                with suppress(CheckpointError):
                    if not self._holds:
                        held.enter_context(self.checkpoints.lock(self.communicator.job))
                    self._save_commit()
            held.close()
            self._holds = False
            cast(ElasticCommunicator, self.communicator).renew()

    def fail(self, reason: str) -> None:
        """Tell who watches, if they were told of the run."""
        if self._speaks:
            self.tracker.fail(reason)

    def hold(self, held: ExitStack) -> None:
        """Take the folder, on the worker that writes."""
        if not self.keeps or self._holds:
            return
        if self.resume:
            self.checkpoints.expect()
        self._takes_over = held.enter_context(self.checkpoints.lock(self.communicator.job))
        self._holds = True
        if self.checkpoints.steps() and not (self.resume or self._takes_over):
            raise CheckpointError(
                f"A new run needs a folder without checkpoints. Got {self.output}, which holds step "
                f"{self.checkpoints.steps()[-1]}: {option('resume', True)} goes on with it, "
                f"another {option('output')} begins anew."
            )

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
            objective = BoundObjective(mll, mine.indices, scaling.scaled(mine.values), mine.weights)
        optimizer = optimizers.make(config.optimizer, config.learning_rate)
        # From here on a signal is answered between two evaluations, and at the end by finishing what is nearly done.
        with self.stop.listening():
            resumed = self._resumed(mll, optimizer)
            if communicator.rank == 0 and not self._speaks:
                self.tracker.start(self._description(mll, 0 if held_out is None else len(held_out)))
                self._speaks = True
            if self.resume or self._change:
                after = "before the first step" if resumed is None else f"after step {resumed.iteration}"
                change = f"{self._change} Workers that go on: {communicator.size}; " if self._change else ""
                self.tracker.note(f"{change}resumed {after}")
            try:
                with measure("start"):
                    progress = self._started(mll, objective, optimizer) if resumed is None else resumed
                reason = self._trained(objective, optimizer, progress, held_out, scaling)
            except InterruptedRunError as stopped:
                kept = self.output is not None and bool(self.checkpoints.steps())
                where = f" {self.output} holds it." if kept else " Nothing was saved."
                raise InterruptedRunError(f"{stopped}{where}", stopped.signal) from None
            with measure("finish"):
                objective(progress.point.x if progress.best is None else progress.best)
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
                together(communicator, lambda: fitted.save(self.checkpoints.folder / KIND) if self.keeps else None)
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
        held_out: TensorEntries | None,
        scaling: Scaling,
    ) -> str:
        """Take the steps, and leave a checkpoint of the last one."""
        communicator, measure, mll = self.communicator, self.stopwatch, objective.mll
        share = None if held_out is None else held_out.shard(communicator.rank, communicator.size)
        before = progress.iteration if progress.history.steps else None

        def score(share: TensorEntries) -> float:
            with measure("held_out"):
                return mean_log_density(mll, share, scaling)

        def save(now: Progress) -> None:
            with measure("saving"):
                self._save(mll, optimizer, now)

        loop = Loop(
            objective,
            optimizer,
            self.config,
            progress,
            tracker=self.tracker,
            held_out=None if share is None else lambda: score(share),
            save=save,
            save_together=lambda now: together(communicator, lambda: save(now)),
            commit=lambda now: self._commit(mll, optimizer, now),
            stop=self.stop,
        )
        with measure("steps"):
            reason = loop.run()
            if progress.iteration == before:
                self.tracker.note(f"no step is left to take: {reason}")
            else:
                together(communicator, lambda: save(progress))
        return reason

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
        """The start, or the best of several after a few steps each."""
        config, data, began = self.config, (objective.indices, objective.values), time.monotonic()
        start: dict[str, Any] = {"seed": config.seed, "scale": config.scale, "weights": objective.weights}
        if config.restarts == 1:
            initialize(mll, *data, **start)
            return Progress(objective(objective.vector()))
        steps = min(_SCREENING, config.max_iterations)
        short = replace(config, max_iterations=steps, validation=0.0, patience=0, checkpoint_seconds=math.inf)

        def train(mll: CollapsedELBO) -> None:
            optimizer.reset()
            progress = Progress(objective(objective.vector()), seconds=time.monotonic() - began)
            Loop(objective, optimizer, short, progress, tracker=Tracker(), stop=self.stop).run()
            objective.assign(progress.point.x)

        try:
            bounds = restart(mll, *data, restarts=config.restarts, train=train, **start)
        except InterruptedRunError as stopped:
            if not self.communicator.elastic:  # there the others go on, and are somewhere else by now
                together(self.communicator, lambda: self._save(mll, optimizer, None))
            raise InterruptedRunError("Stopped by a signal while starts were compared.", stopped.signal) from None
        best = bounds.index(max(bounds))
        self.tracker.compared([{"seed": config.seed + place, "bound": bound} for place, bound in enumerate(bounds)])
        self.tracker.note(
            f"of {config.restarts} starts, seed {config.seed + best} has the best bound, {bounds[best]:.6g}"
        )
        optimizer.reset()
        return Progress(objective(objective.vector()), seconds=time.monotonic() - began)

    def _save(self, mll: CollapsedELBO, optimizer: optimizers.Optimizer, progress: Progress | None) -> None:
        """Write a checkpoint, on the worker that writes; without progress, one that says how to begin."""
        if self.keeps:
            self._write(mll.state_dict(), optimizer, progress)

    def _write(self, mll: dict[str, Tensor], optimizer: optimizers.Optimizer, progress: Progress | None) -> None:
        run = {**self._is, "workers": self.communicator.size, "progress": None, "score": None}
        if progress is None:
            self.checkpoints.save(0, {}, run)
            return
        if progress.history.steps:
            run["score"] = progress.history.steps[-1].score(self.config.patience)
        run["progress"] = progress.to_dict()
        self.checkpoints.save(progress.iteration, pack(mll, optimizer, progress), run)

    def _commit(self, mll: CollapsedELBO, optimizer: optimizers.Optimizer, progress: Progress) -> None:
        if isinstance(self.communicator, ElasticCommunicator):
            self.commits.keep(mll, optimizer, progress)
            self.communicator.commit()

    def _save_commit(self) -> None:
        """Write the last commit, unless it is there."""
        if self.commits.last is not None and self.commits.last[2].iteration not in self.checkpoints.steps():
            self._write(*self.commits.last)

    @property
    def _is(self) -> dict[str, Any]:
        return describe(self.config, self.entries.shape, self.digest)

    def _resumed(self, mll: CollapsedELBO, optimizer: optimizers.Optimizer) -> Progress | None:
        """Where the run was, or None if it had not taken a step: in an elastic job what a worker remembers, else a checkpoint."""
        from_disk = self.resume
        if self.communicator.elastic:
            found = self.commits.share(self.communicator)
            if found is not None:
                progress = unpack(*found, mll, optimizer)
                self.commits.keep(mll, optimizer, progress)
                together(self.communicator, lambda: self._save_commit() if self.keeps else None)
                return progress
            left = self._takes_over and bool(self.checkpoints.steps())
            from_disk = bool(self.communicator.broadcast(torch.tensor([left]).long())) or self.resume
        if not from_disk:
            return None
        tensors, run = self.checkpoints.share_last(self.communicator)
        check_same(run, self._is)
        return None if run["progress"] is None else unpack(tensors, run["progress"], mll, optimizer)

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
