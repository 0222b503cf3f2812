"""The loop: steps until a criterion says stop, rolling back where numbers fail, keeping the best state."""

import copy
import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from gptf_gpytorch.distributed import slots
from gptf_gpytorch.distributed.elastic import WorkersChangedError
from gptf_gpytorch.distributed.verdicts import share
from gptf_gpytorch.errors import CheckpointError, InterruptedRunError, JitterWarning, NumericalError
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.history import Step
from gptf_gpytorch.training.objective import BoundObjective
from gptf_gpytorch.training.optimizers import Optimizer
from gptf_gpytorch.training.signals import StopRequest
from gptf_gpytorch.training.state import Progress

# After this many rollbacks the trouble is not one that jitter cures.
_ROLLBACKS = 5
# The bound is compared with that of so many steps ago.
_WINDOW = 10


class Loop:
    """Takes the steps of a run.

    :param held_out: the score of the held-out entries at the present q(v), or None if there are none.
    :param save: writes a checkpoint; on one worker only, so that it may fail there only.
    :param save_together: writes a checkpoint when all workers know that they do.
    :param commit: called with the state at the start and after every step.
    """

    def __init__(
        self,
        objective: BoundObjective,
        optimizer: Optimizer,
        config: TrainConfig,
        progress: Progress,
        *,
        tracker: Tracker,
        held_out: Callable[[], float] | None = None,
        save: Callable[[Progress], None] = lambda progress: None,
        save_together: Callable[[Progress], None] = lambda progress: None,
        commit: Callable[[Progress], None] = lambda progress: None,
        stop: StopRequest | None = None,
    ) -> None:
        self.objective, self.optimizer, self.config, self.progress = objective, optimizer, config, progress
        self.tracker, self.held_out, self.save, self.save_together = tracker, held_out, save, save_together
        self.commit = commit
        self.stop = StopRequest() if stop is None else stop
        self._communicator = objective.mll.communicator
        # What all workers were asked for, and by whom; why this one could not save.
        self._asked: slots.StopRequestedError | None = None
        self._failure: CheckpointError | None = None
        self._deadline = math.inf
        self._buffers: dict[str, Tensor] = {}

    def run(self) -> str:
        """Step until a criterion is met; the reason in words. q(v) is the last state's, not the best one's."""
        started, before = time.monotonic(), self.progress.seconds
        saved, reason = started, None
        self._deadline = started + self.config.max_seconds - before
        self._remember_buffers()
        self.commit(self.progress)
        if self.progress.history.steps:
            reason = self._criterion()  # a run that was finished, and is resumed, takes no further step
        elif self.progress.best is None and self._comparable:
            watched = self.held_out if self.config.patience else None
            self._keep_best(-self.progress.point.value if watched is None else watched())
        while reason is None:
            evaluations, since, iteration = self.objective.evaluations, time.monotonic(), self.progress.iteration
            moved = self._step()
            self.progress.seconds = before + time.monotonic() - started
            if self.progress.iteration > iteration:  # neither a rollback nor an interruption
                spent = (self.objective.evaluations - evaluations) / max(time.monotonic() - since, 1e-9)
                self._record(spent * self.objective.entries)
                self.commit(self.progress)
            if self._asked is not None:
                return self._answer(self._asked)
            reason = self._criterion() or (None if moved else "no step makes the bound larger")
            if reason is None and time.monotonic() - saved >= self.config.checkpoint_seconds:
                self._save()
                saved = time.monotonic()
        return reason

    def _step(self) -> bool:
        """One step, or a rollback; False if nothing lowers the objective."""
        if self.progress.iteration >= self.config.max_iterations:
            return False
        progress, memory, failures = self.progress, copy.copy(self.optimizer.__dict__), self.objective.failures
        jitter = self._jitter
        self._take(progress.iteration + 1)
        try:
            with warnings.catch_warnings(), self._communicator.asking(self._wish):
                warnings.simplefilter("ignore", JitterWarning)  # said once, below
                found = self.optimizer.step(self.objective, progress.point)
                if found is not None and found.x is not self.objective.last:
                    found = self.objective(found.x)  # q(v) and the terms must be this point's
            if found is None and self.objective.failures > failures:
                raise NumericalError("The bound was no number at any step that was tried.")
        except (NumericalError, slots.StopRequestedError) as error:
            self.optimizer.__dict__.update(memory)
            self._restore_buffers()
            if isinstance(error, slots.StopRequestedError):
                self._asked = error
            else:
                self._roll_back(error)
            return True
        if found is None:
            # As before the trials: whoever resumes from here must find the same.
            self.optimizer.__dict__.update(memory)
            self._restore_buffers()
            return False
        progress.point = found
        if self._jitter != jitter:
            self._note(f"step {progress.iteration + 1}: the jitter of K_BB went from {jitter:g} to {self._jitter:g}")
            self.optimizer.reset()
        progress.iteration += 1
        self._remember_buffers()
        return True

    def _take(self, iteration: int) -> None:
        """Make the next evaluation one of this step, where each draws anew."""
        if self.config.stochastic:
            self.objective.take(iteration)
            self.objective.mll.prior_weight = self.config.prior_weight(iteration) if iteration else 1.0

    def _wish(self) -> int:
        """What this worker's clock, signals and disk ask of all."""
        if self._failure is not None:
            return slots.FAILED
        if self.stop.signal is not None:
            return self.stop.signal
        return slots.TIME_IS_OVER if time.monotonic() >= self._deadline else 0

    def _save(self) -> None:
        """Write a checkpoint by this worker's clock; all hear of a failure in the next evaluation."""
        try:
            self.save(self.progress)
        except CheckpointError as error:
            self._failure = error

    def _roll_back(self, error: NumericalError) -> None:
        """Go back to the last good state with more jitter, or give up."""
        progress = self.progress
        while True:
            progress.rollbacks += 1
            if progress.rollbacks > _ROLLBACKS:
                raise NumericalError(
                    f"Training must find numbers it can work with. Got trouble after {_ROLLBACKS} rollbacks: {error}"
                ) from error
            jitter = 10.0 * self._jitter
            self._restore_buffers()
            self.objective.mll.strategy.jitter.fill_(jitter)
            self._take(progress.iteration)
            self._note(
                f"step {progress.iteration + 1}: {error} Back to step {progress.iteration}, jitter {self._jitter:g} "
                f"(rollback {progress.rollbacks} of {_ROLLBACKS})"
            )
            try:
                progress.point = self.objective(progress.point.x)
                break
            except NumericalError as again:
                error = again
        self.optimizer.reset()
        self._remember_buffers()

    def _record(self, entries_per_second: float) -> None:
        progress, mll = self.progress, self.objective.mll
        score = None if self.held_out is None else self.held_out()
        record = Step.of(
            mll,
            progress.point,
            iteration=progress.iteration,
            seconds=progress.seconds,
            entries_per_second=entries_per_second,
            held_out=score,
        )
        progress.history.steps.append(record)
        self.tracker.step(record.to_dict())
        if self._comparable:
            self._keep_best(record.score(self.config.patience))

    def _keep_best(self, score: float) -> None:
        """Remember this state if it is better than all before; the start is one of them."""
        progress = self.progress
        if score > progress.best_score:
            progress.best, progress.best_score = progress.point.x.clone(), score
            progress.best_iteration = progress.iteration

    def _criterion(self) -> str | None:
        """Why to stop, from numbers that all workers share and a checkpoint holds."""
        config, progress = self.config, self.progress
        if progress.iteration >= config.max_iterations:
            return f"{config.max_iterations} steps were taken"
        if float(progress.point.gradient.abs().max()) <= config.gradient_tolerance:
            return "the gradient is within its tolerance"
        bounds = [] if config.stochastic else [step.bound for step in progress.history.steps[-_WINDOW - 1 :]]
        if len(bounds) > _WINDOW and abs(bounds[-1] - bounds[0]) <= config.tolerance * abs(bounds[0]):
            return f"the bound grew by less than {config.tolerance:g} of itself in {_WINDOW} steps"
        watched = config.patience and self.held_out is not None
        if watched and progress.iteration - progress.best_iteration >= config.patience:
            return f"the held-out entries became no more likely in {config.patience} steps"
        return None

    def _answer(self, asked: slots.StopRequestedError) -> str:
        """Do what a worker asked all for, together."""
        if asked.wish == slots.TIME_IS_OVER:
            return f"{self.config.max_seconds:g} seconds were over"
        if asked.wish == slots.FAILED:
            raise share(self._communicator, self._failure, asked.worker) from self._failure
        self.save_together(self.progress)
        if self._communicator.elastic and asked.worker != self._communicator.rank:
            raise WorkersChangedError(f"Worker {asked.worker} was asked to leave.")
        whose = f" to worker {asked.worker}" if self._communicator.size > 1 else ""
        raise InterruptedRunError(f"Stopped by a signal{whose} after step {self.progress.iteration}.", asked.wish)

    @property
    def _comparable(self) -> bool:
        """Whether a state can be told to be better than another one: bounds over other draws differ by chance."""
        return not self.config.stochastic or (self.config.patience > 0 and self.held_out is not None)

    @property
    def _jitter(self) -> float:
        return float(self.objective.mll.strategy.jitter)

    def _remember_buffers(self) -> None:
        self._buffers = {name: buffer.clone() for name, buffer in self.objective.mll.named_buffers()}

    def _restore_buffers(self) -> None:
        with torch.no_grad():
            for name, buffer in self.objective.mll.named_buffers():
                buffer.copy_(self._buffers[name])
        self.objective.assign(self.progress.point.x)

    def _note(self, text: str) -> None:
        self.progress.history.notes.append(text)
        self.tracker.note(text)
