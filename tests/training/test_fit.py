"""`fit`: it learns, stops for the reason it states, keeps the best state, and goes on as if never interrupted."""

import itertools
import math
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import SMALL, Recorder

from gptf_gpytorch import InputError, NumericalError
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.errors import CheckpointError, InterruptedRunError
from gptf_gpytorch.training import checkpoints
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.objective import BoundObjective
from gptf_gpytorch.training.saved import FittedModel
from gptf_gpytorch.variational.elbo import CollapsedELBO
from gptf_gpytorch.variational.prediction import marginals


def test_it_learns_in_the_users_units_and_the_log_adds_up(entries: TensorEntries) -> None:
    recorder = Recorder()
    result = fit(entries, TrainConfig(max_iterations=60, **SMALL), tracker=recorder)
    q = marginals(result.model, entries.indices)
    mean = result.fitted.scaling.centre + result.fitted.scaling.spread * q.mean
    rmse = float((mean - entries.values).square().mean().sqrt())
    assert rmse < 0.4 * float(entries.values.std())
    assert [kind for kind, _ in recorder.seen] == ["start", *["step"] * 60, "finish"]
    for step in result.history.steps:
        assert sum(step.terms.values()) == pytest.approx(step.bound, rel=1e-9)
        assert step.noise > 0
        assert len(step.lengthscales) == 6
        assert step.entries_per_second > 0
    bounds = [step.bound for step in result.history.steps]
    assert all(after > before for before, after in itertools.pairwise(bounds))
    assert result.bound == pytest.approx(bounds[-1], rel=1e-12)
    assert result.reason == "60 steps were taken"


@pytest.mark.parametrize("optimizer", ["lbfgs", "gd", "adam"])
def test_the_state_that_is_kept_is_the_best(entries: TensorEntries, optimizer: str) -> None:
    result = fit(entries, optimizer=optimizer, max_iterations=25, learning_rate=0.3, **SMALL)
    assert result.bound == pytest.approx(max(step.bound for step in result.history.steps), rel=1e-12)


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
def test_resumed_it_ends_at_the_same_bits(
    entries: TensorEntries, labels: TensorEntries, tmp_path: Path, likelihood: str
) -> None:
    data = labels if likelihood == "probit" else entries
    options = {**SMALL, "likelihood": likelihood, "validation": 0.1}
    whole = fit(data, output=tmp_path / "whole", max_iterations=16, **options)
    fit(data, output=tmp_path / "parts", max_iterations=7, **options)
    resumed = fit(data, output=tmp_path / "parts", max_iterations=16, resume=True, **options)
    assert resumed.bound.hex() == whole.bound.hex()
    for mine, theirs in zip(resumed.fitted.mll.parameters(), whole.fitted.mll.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert [step.bound for step in resumed.history.steps] == [step.bound for step in whole.history.steps]
    loaded = FittedModel.load(tmp_path / "parts")
    assert torch.equal(marginals(loaded.model, data.indices).mean, marginals(whole.model, data.indices).mean)


@pytest.mark.parametrize("optimizer", ["lbfgs", "gd", "adam"])
def test_interrupted_in_the_middle_of_a_step_it_goes_on_at_the_same_bits(
    labels: TensorEntries, tmp_path: Path, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "likelihood": "probit", "optimizer": optimizer, "max_iterations": 12}
    whole = fit(labels, **options)
    original, count = BoundObjective.__call__, itertools.count()

    def interrupting(self: BoundObjective, x: torch.Tensor) -> Any:
        if next(count) == 8:
            signal.raise_signal(signal.SIGTERM)
        return original(self, x)

    monkeypatch.setattr(BoundObjective, "__call__", interrupting)
    with pytest.raises(InterruptedRunError, match=r"Stopped by a signal.* holds it") as stopped:
        fit(labels, output=tmp_path, **options)
    assert stopped.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    monkeypatch.undo()
    resumed = fit(labels, output=tmp_path, resume=True, **options)
    assert resumed.bound.hex() == whole.bound.hex()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_iterations": 3}, "3 steps were taken"),
        ({"max_seconds": 0.0}, "0 seconds were over"),
        ({"tolerance": 0.5, "max_iterations": 400}, "the bound grew by less than 0.5 of itself in 10 steps"),
        ({"gradient_tolerance": 1e9}, "the gradient is within its tolerance"),
        (
            {"validation": 0.5, "patience": 2, "tolerance": 0.0, "optimizer": "adam", "learning_rate": 1.0},
            "the held-out entries became no more likely in 2 steps",
        ),
    ],
)
def test_it_stops_for_the_reason_it_states(entries: TensorEntries, options: dict[str, Any], reason: str) -> None:
    assert fit(entries, **{**SMALL, **options}).reason == reason


def test_patience_keeps_the_state_where_the_held_out_entries_were_most_likely(entries: TensorEntries) -> None:
    options = {"validation": 0.5, "patience": 3, "tolerance": 0.0, "optimizer": "adam", "learning_rate": 0.3}
    result = fit(entries, **{**SMALL, **options})
    scores = [step.held_out for step in result.history.steps]
    best = scores.index(max(scores))
    assert best < len(scores) - 1
    assert result.bound == pytest.approx(result.history.steps[best].bound, rel=1e-12)


def test_the_summary_and_the_saved_model_are_of_the_state_that_was_kept(entries: TensorEntries, tmp_path: Path) -> None:
    """Of a step in the middle, and of the start where every step makes the held-out entries less likely."""
    options = {"validation": 0.5, "patience": 3, "tolerance": 0.0, "optimizer": "adam"}
    for rate, expected in ((0.3, None), (3.0, 0)):
        output = tmp_path / str(rate)
        result = fit(entries, output=output, learning_rate=rate, **{**SMALL, **options})
        scores = [step.held_out for step in result.history.steps]
        kept = result.history.kept
        assert kept.iteration == (1 + scores.index(max(scores)) if expected is None else expected)
        assert kept.iteration < len(scores)
        assert (kept.held_out == pytest.approx(max(scores), rel=1e-9)) == (expected is None)
        assert kept.held_out >= max(scores) - 1e-9
        assert result.summary["held_out"] == kept.held_out
        assert result.bound == pytest.approx(kept.bound, rel=1e-12)
        described = FittedModel.load(output).describe()
        assert (described["kept_step"], described["bound"]) == (kept.iteration, kept.bound)
        assert described["held_out"] == kept.held_out


def test_fewer_inducing_points_than_were_asked_for_are_noted(entries: TensorEntries) -> None:
    recorder = Recorder()
    result = fit(entries[:15], max_iterations=2, tracker=recorder, **SMALL)
    note = "15 inducing points, one for each entry to train on, where inducing is 20"
    assert result.history.notes == [note]
    assert ("note", note) in recorder.seen
    assert fit(entries[:20], max_iterations=2, **SMALL).history.notes == []


def test_a_checkpoint_of_another_kind_or_version_is_not_resumed(entries: TensorEntries, tmp_path: Path) -> None:
    fit(entries, output=tmp_path, max_iterations=3, **SMALL)
    tensors, run = checkpoints.load(tmp_path / "step-00000003")
    for change, message in (
        ({"config": {**run["config"], "momentum": 0.9}}, r"options of this version\. Got 'momentum'"),
        ({"config": {**run["config"], "kernel": "linear"}}, r"kernel must be what the run began with: 'linear'"),
        ({"kind": "model"}, r"must be resumed from a checkpoint\. Got a model"),
    ):
        checkpoints.save(tmp_path / "step-00000003", tensors, {**run, **change})
        with pytest.raises(CheckpointError, match=message):
            fit(entries, output=tmp_path, resume=True, max_iterations=5, **SMALL)
    assert Checkpoints(tmp_path).steps() == [2, 3]


def test_of_several_starts_the_best_goes_on(entries: TensorEntries) -> None:
    recorder = Recorder()
    best = fit(entries, restarts=4, max_iterations=25, tracker=recorder, **SMALL)
    notes = [text for kind, text in recorder.seen if kind == "note"]
    assert len(notes) == 1
    assert notes[0].startswith("of 4 starts, seed ")
    seed = int(notes[0].split("seed ")[1].split()[0])
    alone = [fit(entries, seed=s, max_iterations=20, **SMALL).bound for s in range(4)]
    assert alone[seed] == max(alone)
    assert best.bound >= max(alone)


def test_numbers_that_fail_are_rolled_back_with_more_jitter_and_not_for_ever(
    entries: TensorEntries, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, count, bad = CollapsedELBO.forward, itertools.count(), range(6, 9)

    def failing(self: CollapsedELBO, *args: Any, **kwargs: Any) -> torch.Tensor:
        if next(count) in bad:
            raise NumericalError("The bound must be finite.")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(CollapsedELBO, "forward", failing)
    recorder = Recorder()
    result = fit(entries, optimizer="adam", max_iterations=10, tracker=recorder, **SMALL)
    assert len(result.history.steps) == 10
    notes = [text for kind, text in recorder.seen if kind == "note"]
    assert len(notes) >= 1
    assert "rollback 1 of 5" in notes[0]
    assert float(result.fitted.mll.strategy.jitter) >= 1e-5
    bad = range(6, 10**9)
    count = itertools.count()
    with pytest.raises(NumericalError, match="after 5 rollbacks"):
        fit(entries, optimizer="adam", max_iterations=10, tracker=recorder, **SMALL)
    assert recorder.seen[-1][0] == "fail"


def test_a_folder_with_checkpoints_is_resumed_or_refused(entries: TensorEntries, tmp_path: Path) -> None:
    fit(entries, output=tmp_path, max_iterations=3, **SMALL)
    with pytest.raises(CheckpointError, match=r"holds step 3: resume=True goes on with it, another output begins anew"):
        fit(entries, output=tmp_path, max_iterations=3, **SMALL)
    for change, message in (
        ({"rank": 3}, r"rank must be what the run began with: 2\. Got 3"),
        ({"inducing": 30}, r"inducing must be what the run began with: 20\. Got 30"),
        ({"seed": 1}, "seed must be what the run began with"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fit(entries, output=tmp_path, resume=True, max_iterations=5, **{**SMALL, **change})
    with pytest.raises(CheckpointError, match="data must be what the run began with"):
        fit(entries[1:], output=tmp_path, resume=True, max_iterations=5, **SMALL)
    other = TensorEntries(entries.indices, entries.values, shape=(16, 12, 10), names=entries.names)
    with pytest.raises(CheckpointError, match=r"shape must be .*\[15, 12, 10\]\. Got \[16, 12, 10\]"):
        fit(other, output=tmp_path, resume=True, max_iterations=5, **SMALL)
    assert Checkpoints(tmp_path).steps() == [2, 3]


def test_a_model_that_is_in_the_folder_is_not_replaced(entries: TensorEntries, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.py").write_text("")
    with pytest.raises(
        CheckpointError, match=r"without checkpoints and without model\. Got .*, which holds model: another"
    ):
        fit(entries, output=tmp_path, **SMALL)
    assert (tmp_path / "model" / "mine.py").exists()


def test_bad_arguments_are_refused_before_anything_is_written(entries: TensorEntries, tmp_path: Path) -> None:
    output = tmp_path / "run"
    with pytest.raises(InputError, match="takes a config or its fields"):
        fit(entries, TrainConfig(), rank=3, output=output)
    with pytest.raises(InputError, match="There must be entries"):
        fit(entries[:0], output=output)
    with pytest.raises(InputError, match="resume needs the run's folder"):
        fit(entries, resume=True)
    with pytest.raises(InputError, match=r"must be 0 or 1|in \{0, 1\}"):
        fit(entries, likelihood="probit", output=output, **SMALL)


def test_it_runs_outside_the_main_thread(entries: TensorEntries) -> None:
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(fit(entries, max_iterations=2, **SMALL).bound))
    thread.start()
    thread.join()
    assert math.isfinite(found[0])


def test_zeros_are_sampled_beside_ones(entries: TensorEntries) -> None:
    ones = TensorEntries(entries.indices[:200], torch.ones(200), shape=entries.shape)
    result = fit(ones, likelihood="probit", balance=2.0, max_iterations=3, **SMALL)
    assert result.fitted.mll.num_data == 600
