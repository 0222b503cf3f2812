"""The figures of a run, of real values and of labels."""

from pathlib import Path

import pytest
from small_tensor import make_entries

from gptf_gpytorch import fit
from gptf_gpytorch.reporting import report

COMMON = {"bound.png", "relevance.png", "factors-0.png", "factors-1.png", "factors-2.png"}


@pytest.mark.parametrize(
    ("likelihood", "figures", "scores"),
    [
        ("gaussian", {"predicted.png"}, {"rmse", "mse", "mae", "nlpd"}),
        ("probit", {"ranking.png", "reliability.png"}, {"auc", "average_precision", "log_loss", "ece", "nlpd"}),
    ],
)
def test_a_run_is_drawn_and_scored(likelihood: str, figures: set[str], scores: set[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra plots")
    entries = make_entries(300, binary=likelihood == "probit")
    result = fit(entries, likelihood=likelihood, method="paper", rank=2, inducing=10, max_iterations=3)
    report.draw(result, tmp_path / "figures")
    assert {path.name for path in (tmp_path / "figures").iterdir()} == COMMON | figures
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in (tmp_path / "figures").iterdir())
    assert set(report.scores(result)) == {f"held_out_{name}" for name in scores}


def test_without_held_out_entries_there_is_nothing_to_score(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra plots")
    result = fit(make_entries(200), method="paper", rank=1, inducing=10, max_iterations=2, validation=0.0)
    report.draw(result, tmp_path)
    assert report.scores(result) == {}
    assert {path.name for path in tmp_path.iterdir()} == COMMON
