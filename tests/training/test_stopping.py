"""Runs that are stopped, resumed or over: nothing is lost, and nothing is done twice."""

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from recording import SMALL, Recorder

from gptf_gpytorch.cli import main
from gptf_gpytorch.data import TensorEntries
from gptf_gpytorch.errors import CheckpointError, InterruptedRunError
from gptf_gpytorch.training import checkpoints
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.objective import BoundObjective
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.saved import FittedModel

OVERSHOOTING: dict[str, Any] = {
    **SMALL,
    "validation": 0.5,
    "patience": 3,
    "tolerance": 0.0,
    "optimizer": "adam",
    "learning_rate": 0.3,
}


def same(one: Result, other: Result) -> bool:
    states = [result.fitted.mll.state_dict() for result in (one, other)]
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def during(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *counts: int) -> None:
    """Send Ctrl-C before these calls of a function; the call itself is made."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = itertools.count(1)

    def signalling(*args: Any, **kwargs: Any) -> Any:
        if next(calls) in counts:
            signal.raise_signal(signal.SIGINT)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, signalling)


@pytest.mark.parametrize(
    "options",
    [
        {"max_iterations": 4},
        {"tolerance": 0.5},
        {"gradient_tolerance": 1e9},
        {"max_seconds": 0.0},
        {**OVERSHOOTING, "likelihood": "probit"},
        {"likelihood": "probit", "tolerance": 0.02},
    ],
)
def test_a_run_that_is_over_takes_no_step_when_resumed(
    entries: TensorEntries, labels: TensorEntries, tmp_path: Path, options: dict[str, Any]
) -> None:
    options = {**SMALL, **options}
    data = labels if options.get("likelihood") == "probit" else entries
    first = fit(data, output=tmp_path, **options)
    saved = {path: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    recorder = Recorder()
    again = fit(data, output=tmp_path, resume=True, tracker=recorder, **options)
    assert again.reason == first.reason
    assert same(again, first)
    assert {path: path.read_bytes() for path in (tmp_path / "model").iterdir()} == saved
    notes = [text for kind, text in recorder.seen if kind == "note"]
    assert f"no step is left to take: {first.reason}" in notes or not first.history.steps


def test_a_run_that_is_over_goes_on_when_its_limit_is_raised(labels: TensorEntries, tmp_path: Path) -> None:
    """Also where the state that was kept is not the last one."""
    options = {**OVERSHOOTING, "likelihood": "probit", "patience": 100}
    whole = fit(labels, max_iterations=15, **options)
    scores = [step.held_out for step in whole.history.steps]
    fallen = next(n for n in range(1, 15) if scores[n] < max(scores[:n]))
    part = fit(labels, max_iterations=fallen + 1, output=tmp_path, **options)
    assert part.bound != part.history.steps[-1].bound
    resumed = fit(labels, max_iterations=15, output=tmp_path, resume=True, **options)
    assert [step.bound for step in resumed.history.steps] == [step.bound for step in whole.history.steps]
    assert same(resumed, whole)


def test_the_best_checkpoint_is_kept_beside_the_last_ones(entries: TensorEntries, tmp_path: Path) -> None:
    result = fit(entries, output=tmp_path, keep=2, **OVERSHOOTING)
    scores = [step.held_out for step in result.history.steps]
    best, last = 1 + scores.index(max(scores)), len(scores)
    assert best < last - 1
    assert Checkpoints(tmp_path).steps() == [best, last - 1, last]
    assert Checkpoints(tmp_path).best() == best, "found by whoever did not save it"
    tensors, run = checkpoints.load(tmp_path / f"step-{best:08d}")
    assert run["score"] == max(scores)
    assert torch.equal(tensors["progress.x"], tensors["progress.best"])
    (tmp_path / f"step-{best:08d}" / "state.safetensors").write_bytes(b"damaged")
    assert Checkpoints(tmp_path).best() != best, "a checkpoint that does not load is not the best"


@pytest.mark.parametrize("where", ["value", "save"])
def test_a_signal_when_all_steps_were_taken_lets_the_run_finish(
    entries: TensorEntries, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, handler = fit(entries, max_iterations=3, **SMALL), signal.getsignal(signal.SIGINT)
    owner: type = FittedModel if where == "save" else BoundObjective
    during(monkeypatch, owner, where, 1)
    recorder = Recorder()
    result = fit(entries, max_iterations=3, output=tmp_path, tracker=recorder, **SMALL)
    assert same(result, expected)
    assert ("note", "asked to stop when all steps were taken: the model is finished") in recorder.seen
    assert torch.equal(FittedModel.load(tmp_path).model.factors[0], expected.model.factors[0])
    assert signal.getsignal(signal.SIGINT) is handler


def csv(path: Path, entries: TensorEntries) -> Path:
    rows = [[*index, value] for index, value in zip(entries.indices.tolist(), entries.values.tolist(), strict=True)]
    path.write_text("\n".join([",".join(["user", "item", "day", "value"]), *(",".join(map(str, row)) for row in rows)]))
    return path


def test_the_second_ctrl_c_ends_at_once_and_loses_nothing(
    entries: TensorEntries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first comes in step 4; the second while the checkpoint that answers it is being written."""
    data, output = csv(tmp_path / "data.csv", entries), tmp_path / "run"
    flags = ["--method", "paper", "--rank", "2", "--inducing", "20", "--validation", "0", "--checkpoint-seconds", "0"]
    command = ["train", str(data), *flags, "--max-iterations", "9", "--output", str(output)]
    writes = itertools.count(1)
    original = checkpoints.safetensors.torch.save_file

    def interrupted(*args: Any) -> None:
        if next(writes) == 4:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        original(*args)

    monkeypatch.setattr(checkpoints.safetensors.torch, "save_file", interrupted)
    done = CliRunner().invoke(main, command, prog_name="gptf")
    assert done.exit_code == 130, done.stderr
    assert "Stopped at once.\nResume: " in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.undo()
    assert {path.name for path in output.iterdir()} == {".lock", "step-00000002", "step-00000003"}
    assert Checkpoints(output).load_last()[1]["progress"]["iteration"] == 3
    done = CliRunner().invoke(main, [*command, "--resume"], prog_name="gptf")
    assert done.exit_code == 0, done.stderr


def test_stopped_while_starts_are_compared_a_run_begins_again(
    entries: TensorEntries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "restarts": 3, "max_iterations": 5}
    whole = fit(entries, **options)
    during(monkeypatch, BoundObjective, "__call__", 9)
    with pytest.raises(InterruptedRunError, match=r"on the way to the first step: .* begins again\. .* holds it"):
        fit(entries, output=tmp_path, **options)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="restarts must be what the run began with: 3"):
        fit(entries, output=tmp_path, resume=True, **{**options, "restarts": 2})
    recorder = Recorder()
    resumed = fit(entries, output=tmp_path, resume=True, tracker=recorder, **options)
    assert ("note", "resumed before the first step") in recorder.seen
    assert same(resumed, whole)


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_with_nothing_to_resume_is_named_and_left_alone(
    entries: TensorEntries, tmp_path: Path, there: bool
) -> None:
    output = tmp_path / "typo"
    if there:
        output.mkdir()
    expected = r"There must be a checkpoint to resume from\. Got none in .*typo" + (
        r"\.$" if there else ", which does not exist"
    )
    with pytest.raises(CheckpointError, match=expected):
        fit(entries, output=output, resume=True, **SMALL)
    assert list(tmp_path.rglob("*")) == ([output] if there else [])


def test_the_timings_add_up(entries: TensorEntries, tmp_path: Path) -> None:
    result = fit(entries, output=tmp_path, max_iterations=3, **{**SMALL, "validation": 0.1})
    parts = {name: seconds for name, seconds in result.timings.items() if name != "total"}
    assert set(parts) == {"data", "start", "steps", "held_out", "finish", "saving"}
    assert all(seconds > 0 for seconds in parts.values())
    assert sum(parts.values()) == pytest.approx(result.timings["total"])
    assert result.timings["steps"] < result.seconds, "what is measured inside the steps is not counted twice"
