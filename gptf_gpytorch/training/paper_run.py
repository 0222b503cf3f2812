"""A run of the paper's method: the collapsed bound, maximised step by step."""

import math
import warnings
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.distributed.verdicts import agree, together
from gptf_gpytorch.errors import DataWarning, InterruptedRunError
from gptf_gpytorch.training import optimizers
from gptf_gpytorch.training.history import Kept
from gptf_gpytorch.training.loop import Loop
from gptf_gpytorch.training.objective import BoundObjective, Scaling, mean_log_density
from gptf_gpytorch.training.paper_model import PaperModel, build
from gptf_gpytorch.training.problem import divide, doubts
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.run import Run
from gptf_gpytorch.training.start import started
from gptf_gpytorch.training.state import Progress, snapshot, unpack
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.wording import option

# Of the root of the number of entries: how well lambda is solved in steps whose draws, which are others in every step, move its
# gradient by far more.
_LOOSE = 1e-3


class PaperRun(Run):
    """A run on the bound."""

    @cached_property
    def parts(self) -> tuple[TensorEntries, TensorEntries | None]:
        """The entries to train on, and those held out."""
        return divide(self.entries, self.config)

    def go(self) -> Result:
        """See :meth:`Run.go`."""
        config, communicator, measure = self.config, self.communicator, self.stopwatch
        with measure("data"):
            agree(communicator, self.fingerprint())
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
            fitted = PaperModel(
                mll=mll,
                config=config,
                scaling=scaling,
                mode_names=self.entries.names,
                vocabularies=self.entries.vocabularies,
                value_name=self.value_name,
                history=progress.history,
            )
            with measure("saving"):
                together(communicator, lambda: self.save_model(fitted))
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
            "steps": self.config.max_iterations,
            "text": f"{self.config.likelihood}, rank {_rank(self.config.rank)}, "
            f"{mll.strategy.inducing_points.size(-2)} inducing points, {self.config.optimizer}",
        }


def _rank(rank: int | tuple[int, ...]) -> str:
    return str(rank) if isinstance(rank, int) else ",".join(map(str, rank))
