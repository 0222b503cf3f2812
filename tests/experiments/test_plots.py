"""The figures are drawn from the committed results alone."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
FIGURES = {"evaluation", "prediction", "entries", "inducing_and_rank", "memory", "workers"}


def draw(results: Path, figures: Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "experiments" / "plots" / "benchmarks.py"
    command = [sys.executable, "-W", "error", script, "--results", results, "--figures", figures]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    done = draw(RESULTS, tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {f"{name}.png" for name in FIGURES}
    for path in tmp_path.iterdir():
        assert path.stat().st_size < 100_000, path.name
        with Image.open(path) as image:
            image.verify()
        with Image.open(path) as image:
            assert image.format == "PNG"
            assert 500 < image.width < 1200, path.name
            assert 150 < image.height < 600, path.name
            darkest, lightest = image.convert("L").getextrema()
            assert darkest < 50, f"{path.name} is blank"
            assert lightest == 255


def test_the_committed_figures_are_all_there() -> None:
    assert {path.stem for path in (RESULTS / "figures").glob("*.png") if not path.stem.startswith("table-")} == FIGURES


def test_a_figure_follows_its_result(tmp_path: Path) -> None:
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results, ignore=shutil.ignore_patterns("figures"))
    evaluation = json.loads((results / "evaluation.json").read_text())
    for state in evaluation["states"].values():
        state["median seconds"]["another peer"] = 2 * state["median seconds"]["naive autograd"]
    (results / "evaluation.json").write_text(json.dumps(evaluation))
    for source, name in ((RESULTS, "before"), (results, "after")):
        assert draw(source, tmp_path / name).returncode == 0
    changed = {
        path.stem
        for path in (tmp_path / "before").iterdir()
        if path.read_bytes() != (tmp_path / "after" / path.name).read_bytes()
    }
    assert changed == {"evaluation"}


@pytest.mark.parametrize("name", ["evaluation", "prediction", "scaling", "sweep", "workers"])
def test_a_missing_result_is_named(tmp_path: Path, name: str) -> None:
    results = tmp_path / "results"
    shutil.copytree(RESULTS, results, ignore=shutil.ignore_patterns("figures"))
    (results / f"{name}.json").unlink()
    done = draw(results, tmp_path / "figures")
    assert done.returncode != 0
    assert f"{name}.json" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_readmes_tables_are_what_the_results_say() -> None:
    files = (ROOT / "README.md", ROOT / "docs" / "scaling.md", ROOT / "experiments" / "README.md")
    command = [sys.executable, ROOT / "experiments" / "plots" / "tables.py", *files, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
