"""Ctrl-C and SIGTERM where a run has not begun: the end at once, one line at most, nothing written."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GPTF = Path(sys.executable).with_name("gptf")
ROWS = "user,item,value\n" + "".join(f"{n % 7},{n // 7},{n * n % 11}\n" for n in range(40))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_while_modules_are_imported(number: int, code: int) -> None:
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    with subprocess.Popen([GPTF, "doctor"], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert any("gptf_gpytorch.errors" in line for line in process.stderr), "gpytorch comes after it"
        process.send_signal(number)
        rest = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.returncode == code
    assert rest == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_while_data_is_read(tmp_path: Path, number: int, code: int) -> None:
    """From a pipe, which has no end before the one who writes is gone."""
    os.mkfifo(tmp_path / "data.csv")
    command = [GPTF, "train", tmp_path / "data.csv", "--output", tmp_path / "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        with (tmp_path / "data.csv").open("w") as pipe:  # opens when the reader does
            pipe.write(ROWS)
            pipe.flush()
            began = time.monotonic()
            process.send_signal(number)
            try:
                process.wait(30)
            finally:
                process.kill()
        text = process.stderr.read()
    assert time.monotonic() - began < 10
    assert process.returncode == code, text
    assert text == "Stopped at once.\n"
    assert not (tmp_path / "run").exists()
