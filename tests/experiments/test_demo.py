"""The demo removes what it made, and nothing else. That it runs is what `make demo` shows."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorly")
DEMO = Path(__file__).parents[2] / "experiments" / "demo.py"


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    thesis = tmp_path / "run" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    done = subprocess.run(
        [sys.executable, DEMO, "--output", tmp_path], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "must be a new or empty folder" in done.stderr
    assert thesis.read_text() == "years of work"


def test_its_own_folder_is_used_again(tmp_path: Path) -> None:
    clear = runpy.run_path(str(DEMO))["_clear"]
    clear(tmp_path / "runs" / "demo")
    left = tmp_path / "runs" / "demo" / "run" / "model"
    left.mkdir(parents=True)
    notes = tmp_path / "runs" / "demo" / "notes.txt"
    notes.write_text("mine")
    clear(tmp_path / "runs" / "demo")
    assert not left.exists()
    assert notes.exists()
