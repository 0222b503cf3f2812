"""A run of the default method: a race of short chains, then a long run of the best of them on all entries."""

import time
import warnings
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.sampling import balance
from gptf_gpytorch.distributed import slots
from gptf_gpytorch.distributed.elastic import WorkersChangedError
from gptf_gpytorch.distributed.verdicts import agree, share, together
from gptf_gpytorch.errors import CheckpointError, DataWarning, InterruptedRunError
from gptf_gpytorch.multilinear.layout import Entities
from gptf_gpytorch.training import race, recipe
from gptf_gpytorch.training.chains import Chain, ChainData, Moments, Sampled
from gptf_gpytorch.training.history import History
from gptf_gpytorch.training.objective import Scaling
from gptf_gpytorch.training.problem import doubts
from gptf_gpytorch.training.recipe import Plan
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.run import Run
from gptf_gpytorch.training.sampled_model import SampledModel
from gptf_gpytorch.training.state import Snapshot

# Sweeps of a race between two looks at its held-out entries.
_LOOK = 5


@dataclass
class Where:
    """Where a run is: the stages that are over, and the chain of the one that is not.

    :param race: what each runner of the race said of the held-out entries.
    :param chains: what each runner of the long run has learnt.
    :param selected: the runners of the long run and their weights, once the race is over.
    :param sweep: of the present chain.
    :param iteration: sweeps of all chains so far.
    :param trace: a record for every sweep of the long run.
    """

    race: list[Moments] = field(default_factory=list)
    chains: list[Sampled] = field(default_factory=list)
    selected: dict[int, float] | None = None
    calibration: float = 1.0
    sweep: int = 0
    iteration: int = 0
    seconds: float = 0.0
    race_seconds: list[float] = field(default_factory=list)
    trace: list[dict[str, Any]] = field(default_factory=list)

    def content(self) -> dict[str, Any]:
        """The part that is JSON."""
        names = ("calibration", "sweep", "iteration", "seconds", "race_seconds")
        selected = None if self.selected is None else {str(place): w.hex() for place, w in self.selected.items()}
        return {
            **{name: getattr(self, name) for name in names},
            "calibration": self.calibration.hex(),
            "race": len(self.race),
            "chains": len(self.chains),
            "selected": selected,
            "race_seconds": list(self.race_seconds),
            "trace": list(self.trace),
        }


class SampledRun(Run):
    """A race and a long run."""

    def go(self) -> Result:
        """See :meth:`Run.go`."""
        config, communicator, measure = self.config, self.communicator, self.stopwatch
        with measure("data"):
            agree(communicator, self.fingerprint())
            for text in doubts(self.entries, config):
                if communicator.rank == 0 and not self._change:
                    warnings.warn(text, DataWarning, stacklevel=3)
            entries = self.entries
            if config.balance:
                entries = balance(entries, ratio=config.balance, seed=config.seed)
            self._prepare(entries)
        with self.stop.listening():
            restored = self.store.restore()
            where = Where() if restored is None else self._restored(*restored)
            if communicator.rank == 0 and not self._speaks:
                self.tracker.start(self._description())
                self._speaks = True
            if self.resume or self._change or restored is not None:
                change = f"{self._change} Workers that go on: {communicator.size}; " if self._change else ""
                self.tracker.note(f"{change}resumed after sweep {where.iteration}")
            try:
                with measure("steps"):
                    self._advance(where)
            except InterruptedRunError as stopped:
                there = f" {self.output} holds it." if self.store.holds_a_state else " Nothing was saved."
                raise InterruptedRunError(f"{stopped}{there}", stopped.signal) from None
            with measure("finish"):
                fitted = self._fitted(where)
            with measure("saving"):
                together(communicator, lambda: self.save_model(fitted))
            if self.stop.signal is not None:
                self.tracker.note("asked to stop when all sweeps were taken: the model is finished")
        timings = {**measure.seconds, "total": sum(measure.seconds.values())}
        history = History(notes=list(fitted.history["notes"]))
        # Nothing is held out of the model itself: its long run is on all entries.
        result = Result(fitted, "all sweeps were taken", history, where.seconds, timings)
        self.tracker.finish(result)
        return result

    def _prepare(self, entries: TensorEntries) -> None:
        """Hold entries out, scale values, and make the plan."""
        config, n = self.config, len(entries)
        self.all = entries
        count = recipe.held_out_count(n) if config.validation else 0
        order = torch.from_numpy(np.random.default_rng([config.seed, 0]).permutation(n))
        self.held_out, self.train = entries[order[:count].sort().values], entries[order[count:].sort().values]
        standardize = config.likelihood == "gaussian" and config.standardize
        # All workers have all entries: the scaling needs no sum.
        values = entries.values.double()
        spread = float(values.std(correction=0)) if standardize else 1.0
        self.scaling = Scaling(float(values.mean()) if standardize else 0.0, spread if spread > 0 else 1.0)
        entities = Entities.among(entries.indices, entries.shape)
        self.plan: Plan = recipe.plan(
            config.effort,
            n,
            entities.offsets[-1],
            len(entries.shape),
            binary=self.binary,
            pairs=config.pairs,
            products=config.products,
            counts=config.counts,
            process=config.process,
            sweeps=config.sweeps,
            samples=config.samples,
        )
        self.data: dict[str, ChainData] = {}

    def _chain_data(self, stage: str) -> ChainData:
        """The entries of the race, or of the long run; made when they are needed, and once."""
        if stage not in self.data:
            entries = self.train if stage == "race" else self.all
            self.data = {
                stage: ChainData.of(
                    entries.indices,
                    self.scaling.scaled(entries.values),
                    entries.weights,
                    entries.shape,
                    binary=self.binary,
                    communicator=self.communicator,
                )
            }
        return self.data[stage]

    @property
    def binary(self) -> bool:
        """Whether values are labels."""
        return self.config.likelihood == "probit"

    def _stage(self, where: Where) -> tuple[str, int] | None:
        """The stage that comes next, and its runner."""
        if where.selected is None:
            if len(self.held_out) and len(self.plan.runners) > 1:
                return "race", len(where.race)
            where.selected = {0: 1.0} if len(self.plan.runners) == 1 else self._without_race()
        left = list(where.selected)[len(where.chains) :]
        return ("long", left[0]) if left else None

    def _without_race(self) -> dict[int, float]:
        """Nothing is held out: as many runners as the plan allows, from the largest on, all alike."""
        most = self.plan.most
        places = range(len(self.plan.runners))[-most:]
        return {place: 1.0 / len(places) for place in places}

    def _chain(self, stage: str, runner: int) -> Chain:
        schedules = self.plan.race if stage == "race" else self.plan.long
        # Seeds of their own: one for each runner of each stage.
        seed = int(np.random.SeedSequence([self.config.seed, 1 + runner, stage == "race"]).generate_state(1)[0])
        return Chain(
            self._chain_data(stage),
            self.plan.runners[runner],
            schedules[runner],
            samples=min(self.plan.samples, schedules[runner].sweeps - schedules[runner].burn_in),
            points=self.plan.points,
            learnt_on=self.plan.learnt_on,
            seed=seed,
            communicator=self.communicator,
        )

    def _advance(self, where: Where) -> None:
        """Take all sweeps that are left."""
        started, before = time.monotonic(), where.seconds
        self._saved, self._failure = started, None
        while (stage := self._stage(where)) is not None:
            chain, began = self._chain(*stage), time.monotonic()
            if self._present is not None:
                chain.load(self._present, where.sweep)
                self._present = None
            where.sweep = chain.sweep
            while not chain.done:
                self._sweep(where, chain, stage)
                where.seconds = before + time.monotonic() - started
                self._record(where, chain, stage, time.monotonic() - began)
                if not chain.done:
                    self._keep(where, chain)
            self._finish_stage(where, chain, stage, time.monotonic() - began)
            self._keep(where, None)
        together(self.communicator, lambda: self.store.save(self._snapshot(where, None)))

    _present: dict[str, Tensor] | None = None
    _failure: CheckpointError | None = None
    _saved = 0.0

    def _sweep(self, where: Where, chain: Chain, stage: tuple[str, int]) -> None:
        try:
            with self.communicator.asking(self._wish):
                chain.advance()
        except slots.StopRequestedError as asked:
            if asked.wish == slots.FAILED:
                raise share(self.communicator, self._failure, asked.worker) from self._failure
            together(self.communicator, lambda: self.store.save(self._snapshot(where, chain)))
            if self.communicator.elastic and asked.worker != self.communicator.rank:
                raise WorkersChangedError(f"Worker {asked.worker} was asked to leave.") from None
            whose = f" to worker {asked.worker}" if self.communicator.size > 1 else ""
            text = f"Stopped by a signal{whose} after sweep {where.iteration}."
            raise InterruptedRunError(text, asked.wish) from None
        where.sweep = chain.sweep
        where.iteration += 1

    def _wish(self) -> int:
        """What this worker's signals and disk ask of all."""
        if self._failure is not None:
            return slots.FAILED
        return 0 if self.stop.signal is None else self.stop.signal

    def _keep(self, where: Where, chain: Chain | None) -> None:
        """Commit the state, and write it now and then."""
        self.store.commit(lambda: self._snapshot(where, chain))
        if time.monotonic() - self._saved >= self.config.checkpoint_seconds:
            try:
                with self.stopwatch("saving"):
                    self.store.save(self._snapshot(where, chain))
            except CheckpointError as error:  # all hear of it in the next sweep
                self._failure = error
            self._saved = time.monotonic()

    def _record(self, where: Where, chain: Chain, stage: tuple[str, int], seconds: float) -> None:
        name, runner = stage
        of = len(self.plan.runners) if name == "race" else len(where.selected or ())
        place = runner if name == "race" else len(where.chains)
        score = None
        if name == "race" and (chain.sweep % _LOOK == 0 or chain.done):
            score = self._score_of(chain)
        record = {
            "iteration": where.iteration,
            "stage": name,
            "chain": place + 1,
            "of": of,
            "sweep": chain.sweep,
            "last": chain.done,
            "noise": float(chain.state.noise_precision) ** -0.5,
            "held_out": score,
            "seconds": where.seconds,
            "entries_per_second": len(chain.data.values) * chain.sweep / max(seconds, 1e-9),
        }
        where.trace.append({key: record[key] for key in ("iteration", "stage", "chain", "noise", "held_out")})
        self.tracker.step(record)

    def _score_of(self, chain: Chain) -> float:
        """Minus the loss of the held-out entries by the present state alone."""
        found = chain.sampled([chain.state]).moments(
            chain.data.entities.rows(self.held_out.indices), binary=self.binary
        )
        return -float(self._loss(race.predicted(found, binary=self.binary)))

    def _loss(self, predictions: Tensor) -> Tensor:
        return race.loss(self._held_out_values, predictions, self._held_out_weights, binary=self.binary)

    @property
    def _held_out_values(self) -> Tensor:
        return self.scaling.scaled(self.held_out.values)

    @property
    def _held_out_weights(self) -> Tensor | None:
        return None if self.held_out.weights is None else self.held_out.weights.double()

    def _finish_stage(self, where: Where, chain: Chain, stage: tuple[str, int], seconds: float) -> None:
        sampled = chain.sampled()
        where.sweep = 0
        if stage[0] == "long":
            where.chains.append(sampled)
            return
        rows = chain.data.entities.rows(self.held_out.indices)
        where.race.append(sampled.moments(rows, binary=self.binary))
        where.race_seconds.append(seconds)
        if len(where.race) == len(self.plan.runners):
            self._decide(where)

    def _decide(self, where: Where) -> None:
        """Weigh the runners by what they said of the held-out entries."""
        y, o = self._held_out_values, self._held_out_weights
        predictions = torch.stack([race.predicted(found, binary=self.binary) for found in where.race])
        where.selected = race.selected(y, predictions, o, self.plan.most, binary=self.binary)
        if not self.binary:
            where.calibration = race.calibration(y, self._combined(where), o)
        self.tracker.compared(self._table(where))
        self.tracker.note(self._decision(where))

    def _combined(self, where: Where) -> Moments:
        chosen = where.selected or {}
        return Moments.mixed([where.race[place] for place in chosen], list(chosen.values()))

    def _table(self, where: Where) -> list[dict[str, Any]]:
        """Scores of the held-out entries: of the combination, of trivial predictions, of each runner."""
        if not where.race:
            return []
        y, o = self._held_out_values, self._held_out_weights
        options: dict[str, Any] = {"binary": self.binary, "spread": self.scaling.spread}
        chosen = where.selected or {}
        combined = race.predicted(self._combined(where), binary=self.binary)
        rows = [{"name": "this model", "weight": None, **race.scores(y, combined, o, **options)}]
        simple = race.trivial(self.train, self.held_out, [self.scaling.scaled(self.train.values)])
        rows += [{"name": name, "weight": None, **race.scores(y, p, o, **options)} for name, p in simple.items()]
        for place, (runner, found) in enumerate(zip(self.plan.runners, where.race, strict=True)):
            predicted = race.predicted(found, binary=self.binary)
            rows.append(
                {"name": str(runner), "weight": chosen.get(place, 0.0), **race.scores(y, predicted, o, **options)}
            )
        return rows

    def _decision(self, where: Where) -> str:
        """In one line, what was decided and why."""
        chosen = where.selected or {}
        parts = sorted(chosen.items(), key=lambda item: -item[1])
        weighed = ", ".join(f"{weight:.2f} {self.plan.runners[place]}" for place, weight in parts)
        return (
            f"race of {len(where.race)} runners on {len(self.held_out):,} held-out entries: together these predict them best, "
            f"and run on all {len(self.all):,} entries: {weighed}"
        )

    def _fitted(self, where: Where) -> SampledModel:
        table, notes = self._table(where), []
        by_name = {row["name"]: row for row in table}
        measure = "log_loss" if self.binary else "rmse"
        additive = by_name.get(str(recipe.RUNNERS[0]))
        if additive and by_name["this model"][measure] >= additive[measure]:
            notes.append(
                "nothing predicts the held-out entries better than additive biases: the entries do not show how entities "
                "interact. More entries of each entity would help."
            )
            self.tracker.note(f"Warning: {notes[-1]}")
        if len(self.all) < recipe.LEAST_ENTRIES:
            notes.append(
                f"{len(self.all)} entries are too few to tell models apart ({recipe.LEAST_ENTRIES} are needed): "
                f"what was learnt is {self.plan.runners[0]}"
            )
            self.tracker.note(notes[-1])
        singles = [len(ids) == 1 for ids in self._chain_data("long").entities.ids]
        for name, single in zip(self.entries.names, singles, strict=True):
            if single:
                notes.append(f"mode {name!r} has one entity in training: nothing can be learnt of others")
                self.tracker.note(notes[-1])
        data = self._chain_data("long")
        weights = list((where.selected or {}).values())
        model = table[0] if table else {}
        summary = {
            "sweeps": where.iteration,
            "seconds": where.seconds,
            "held_out": {key: value for key, value in model.items() if key not in ("name", "weight")} or None,
        }
        return SampledModel(
            config=self.config,
            scaling=self.scaling,
            mode_names=self.entries.names,
            vocabularies=self.entries.vocabularies,
            value_name=self.value_name,
            entities=data.entities,
            counts=data.counts,
            chains=tuple(where.chains),
            weights=tuple(weights),
            calibration=where.calibration,
            num_data=len(self.all),
            history={"race": table, "trace": where.trace, "notes": notes, "summary": summary},
        )

    def _snapshot(self, where: Where, chain: Chain | None) -> Snapshot:
        tensors = {
            f"race.{place}.{name}": tensor
            for place, found in enumerate(where.race)
            for name, tensor in vars(found).items()
        }
        for place, sampled in enumerate(where.chains):
            tensors |= {f"chain.{place}.{name}": tensor for name, tensor in sampled.tensors().items()}
        if chain is not None:
            tensors |= {f"present.{name}": tensor.clone() for name, tensor in chain.tensors().items()}
        content = where.content()
        return Snapshot(where.iteration, lambda: (tensors, content))

    def _restored(self, tensors: dict[str, Tensor], content: dict[str, Any]) -> Where:
        """Where a run was, from what :meth:`_snapshot` packed."""

        def below(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(name): tensor for key, tensor in tensors.items() if key.startswith(name)}

        self._present = below("present.") or None
        selected = content["selected"]
        chosen = None if selected is None else {int(place): float.fromhex(w) for place, w in selected.items()}
        chains = []
        for place in range(content["chains"]):
            runner = self.plan.runners[list(chosen or {})[place]]
            data = self._chain_data("long")
            chains.append(Sampled.restored(runner, data.entities, data.counts, below(f"chain.{place}.")))
        return Where(
            race=[Moments(**below(f"race.{place}.")) for place in range(content["race"])],
            chains=chains,
            selected=chosen,
            calibration=float.fromhex(content["calibration"]),
            sweep=content["sweep"],
            iteration=content["iteration"],
            seconds=content["seconds"],
            race_seconds=list(content["race_seconds"]),
            trace=list(content["trace"]),
        )

    def _description(self) -> dict[str, Any]:
        plan = self.plan
        longest = sorted((schedule.sweeps for schedule in plan.long), reverse=True)[: plan.most]
        racing = sum(s.sweeps for s in plan.race) if len(self.held_out) and len(plan.runners) > 1 else 0
        return {
            "config": self.config.to_dict(),
            "modes": dict(zip(self.entries.names, self.entries.shape, strict=True)),
            "entries": len(self.all),
            "held_out": len(self.held_out),
            "digest": self.digest,
            "workers": self.communicator.size,
            "output": None if self.output is None else str(self.output),
            "resumed": self.resume or bool(self._change),
            "steps": racing + sum(longest),
            "text": f"{self.config.likelihood}, sampled, effort {self.config.effort}: a race of {len(plan.runners)} runners on "
            f"{len(self.held_out):,} held-out entries, then at most {plan.most} of them on all",
            "plan": {"runners": [asdict(runner) for runner in plan.runners]},
        }
