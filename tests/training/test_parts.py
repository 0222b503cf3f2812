"""Steps that take small parts of the entries, with a q(v) that remembers the parts before."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from small_tensor import make_entries
from workers import ThreadCommunicator, Workers

from gptf_gpytorch import InterruptedRunError, fit
from gptf_gpytorch.training.objective import BoundObjective
from gptf_gpytorch.variational.elbo import CollapsedELBO

OPTIONS: dict[str, Any] = {
    "method": "paper",
    "rank": 2,
    "inducing": 20,
    "draws": 1,
    "optimizer": "adam",
    "learning_rate": 0.1,
    "validation": 0.0,
    "batch": 100,
    "forget": 0.1,
    "start_steps": 40,
}


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
def test_small_parts_find_what_all_entries_find(likelihood: str) -> None:
    entries = make_entries(binary=likelihood == "probit")
    options = {**OPTIONS, "likelihood": likelihood, "max_iterations": 200}
    whole = fit(entries, **{**options, "batch": 0, "forget": 1.0, "start_steps": 0}).bound
    assert fit(entries, **{**options, "batch": 50, "start_steps": 100}).bound > whole - 0.2


def test_tiny_parts_are_worth_more_to_whoever_remembers() -> None:
    options = {**OPTIONS, "start_steps": 0, "batch": 25, "max_iterations": 300}
    forgetful, remembering = (fit(make_entries(), **{**options, "forget": forget}).bound for forget in (1.0, 0.1))
    assert remembering > forgetful + 0.05


@pytest.mark.parametrize("biases", [False, True])
def test_a_start_of_quick_steps_leaves_deviations_and_biases_where_they_are(biases: bool) -> None:
    start, later = (
        fit(make_entries(), **OPTIONS, biases=biases, max_iterations=steps).fitted.model.factors for steps in (0, 10)
    )
    before = fit(make_entries(), method="paper", rank=2, max_iterations=0, validation=0.0).fitted.model.factors
    assert float((start[0] - before[0]).detach().abs().max()) > 0.1
    assert all(torch.equal(table, torch.full_like(table, math.log(0.1))) for table in start.log_deviations)
    assert all(not bool(table.any()) for table in start.biases)
    moved = [*zip(start.log_deviations, later.log_deviations, strict=True)]
    moved += [*zip(start.biases, later.biases, strict=True)]
    moved += [*zip(start.log_bias_deviations, later.log_bias_deviations, strict=True)]
    assert all(not torch.equal(old, new) for old, new in moved)


def test_quick_steps_take_a_quarter_and_only_the_last_evaluation_all(monkeypatch: pytest.MonkeyPatch) -> None:
    entries, seen, original = make_entries(), [], CollapsedELBO.forward

    def looking(self: CollapsedELBO, *args: Any, **options: Any) -> Any:
        seen.append((self.sample, self.forget))
        return original(self, *args, **options)

    monkeypatch.setattr(CollapsedELBO, "forward", looking)
    fit(entries, **{**OPTIONS, "batch": 240, "max_iterations": 6})
    first, quick, steps, last = seen[0], seen[1:41], seen[41:48], seen[48:]
    assert first[1] == 1.0  # there is nothing to remember yet
    assert 40 < sum(sample for sample, _ in quick) / 40 < 80
    assert 200 < sum(sample for sample, _ in steps) / 7 < 400
    assert {forget for _, forget in (*quick, *steps)} == {0.1}
    assert last == [(None, 1.0)]


@pytest.mark.parametrize("likelihood", ["gaussian", "probit"])
@pytest.mark.parametrize("step", [7, 55])
def test_a_run_that_remembers_is_resumed_at_the_same_bits(
    likelihood: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = make_entries(binary=likelihood == "probit")
    options = {**OPTIONS, "likelihood": likelihood, "biases": True, "max_iterations": 20}
    whole = fit(entries, **options).fitted
    original, calls = BoundObjective.__call__, []

    def interrupting(self: BoundObjective, x: torch.Tensor) -> Any:
        calls.append(x)
        if len(calls) == step:  # the first ones are quick steps
            signal.raise_signal(signal.SIGTERM)
        return original(self, x)

    monkeypatch.setattr(BoundObjective, "__call__", interrupting)
    with pytest.raises(InterruptedRunError, match="on the way to the first step" if step == 7 else "after step 12"):
        fit(entries, output=tmp_path, **options)
    monkeypatch.undo()
    resumed = fit(entries, output=tmp_path, resume=True, **options).fitted
    for name, tensor in whole.mll.state_dict().items():
        assert torch.equal(tensor, resumed.mll.state_dict()[name]), name


def test_workers_take_the_steps_of_one_process() -> None:
    entries, options = make_entries(), {**OPTIONS, "max_iterations": 20}
    alone = fit(entries, **options).bound

    def job(communicator: ThreadCommunicator) -> float:
        return fit(entries, **options, communicator=communicator).bound

    for bound in Workers(2).run(job):
        assert bound == pytest.approx(alone, rel=1e-8)
