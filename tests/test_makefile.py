"""The Makefile says what it can do."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_help_has_one_line_for_every_target() -> None:
    phony = re.findall(r"^\.PHONY: (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    done = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert [line.split()[1] for line in lines] == phony
    assert all(len(line.split()) > 2 for line in lines)
    assert {"test", "check", "horovod", "clean"} <= set(phony)


def test_the_runs_on_a_server_are_not_shown_by_another() -> None:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": "https://mlflow.example.com"}
    command = ["make", "--no-print-directory", "--silent", "--old-file", ".venv/.installed", "ui"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "A server shows these runs: https://mlflow.example.com\n"
