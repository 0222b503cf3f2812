"""``gptf doctor`` as a user runs it: the installed command, in environments that have or lack the extras."""

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

import gpytorch
import pytest

SITE = Path(gpytorch.__file__).parents[1]
GPTF = Path(sys.executable).with_name("gptf")


def doctor(
    cwd: Path, *, command: tuple[str | Path, ...] = (GPTF,), **environment: str
) -> tuple[int, dict[str, str], str]:
    """The exit code, the line of each topic, and everything that was printed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    done = subprocess.run(
        [*command, "doctor"], cwd=cwd, env={**kept, **environment}, capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr
    topics = {}
    for line in done.stdout.splitlines():
        if line[0] != " ":
            state, rest = line.split(maxsplit=1)
            name = rest.split("  ")[0]
            topics[name] = f"{state} {rest}"
    return done.returncode, topics, done.stdout + done.stderr


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with this package and its core requirements, and neither Horovod nor MLflow."""
    folder = tmp_path_factory.mktemp("an environment") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    for path in SITE.iterdir():
        if not path.name.startswith(("mlflow", "horovod", "__editable__")):
            (site / path.name).symlink_to(path)
    (site / "package.pth").write_text(f"{Path(__file__).parents[1]}\n")
    return folder / "bin" / "python"


def test_everything_installed_works(tmp_path: Path) -> None:
    code, topics, output = doctor(tmp_path, OMP_NUM_THREADS="1")
    assert code == 0, output
    for name in ("gptf_gpytorch", "python", "torch", "gpytorch", "linear_operator", "numpy"):
        assert topics[name].startswith("ok ")
    assert "1 torch threads" in topics["threads"]
    assert "OMP_NUM_THREADS=1" in topics["threads"]
    assert "1 chunk at a time" in topics["map"]
    assert topics["BLAS"].split()[2] != "unknown"
    assert list(tmp_path.iterdir()) == [], "doctor must leave nothing behind"
    assert "will be created" in topics["mlflow store"]


def test_horovod_reports_its_controllers(tmp_path: Path) -> None:
    pytest.importorskip("horovod", reason="Horovod is not installed: make horovod (Python 3.11)")
    _, topics, _ = doctor(tmp_path)
    assert "gloo yes" in topics["horovod controllers"]


def test_without_the_extras_it_names_the_commands(tmp_path: Path, bare: Path) -> None:
    code, topics, output = doctor(tmp_path, command=(bare, "-m", "gptf_gpytorch"))
    assert code == 0, output
    assert topics["horovod"].startswith("missing")
    assert topics["mlflow"].startswith("missing")
    remedies = [shlex.split(line.partition("->")[2]) for line in output.splitlines() if "->" in line]
    assert [str(bare), "-m", "gptf_gpytorch.distributed.build_horovod"] in remedies
    install = next(words for words in remedies if "pip" in words)
    assert install[:4] == [str(bare), "-m", "pip", "install"]
    assert install[4].startswith("mlflow")
    assert "!=3.18.0" in install[4]


def test_a_folder_named_mlflow_is_not_taken_for_the_package(tmp_path: Path, bare: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    _, topics, _ = doctor(tmp_path, command=(bare, "-m", "gptf_gpytorch"))
    assert topics["mlflow"].startswith("missing")


def test_a_broken_horovod_is_an_error(tmp_path: Path) -> None:
    broken = tmp_path / "path" / "horovod"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("")
    (broken / "torch.py").write_text("raise ImportError('undefined symbol: _ZN5torch')")
    info = tmp_path / "path" / "horovod-0.28.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    code, topics, output = doctor(tmp_path, PYTHONPATH=str(tmp_path / "path"))
    assert code == 1
    assert topics["horovod"].startswith("broken")
    assert "undefined symbol" in topics["horovod"]
    assert "build_horovod --force" in output


def test_a_leftover_mlruns_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "mlruns" / "0").mkdir(parents=True)
    (tmp_path / "mlruns" / "0" / "meta.yaml").write_text("name: Default\nexperiment_id: '0'\n")
    code, topics, output = doctor(tmp_path)
    assert code == 1
    assert topics["mlflow store"].startswith("broken")
    assert "mv mlruns mlruns.old" in output


def test_a_store_that_is_there_is_opened(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_text("this is not a database, whatever its name says" * 100)
    code, topics, _ = doctor(tmp_path)
    assert code == 1
    assert "does not open" in topics["mlflow store"]


def test_a_path_with_spaces_is_not_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "my stuff"
    folder.mkdir()
    code, topics, output = doctor(folder)
    assert code == 0, output
    assert "my stuff/mlflow.db will be created" in topics["mlflow store"]
    assert "INFO" not in output
    assert list(folder.iterdir()) == []
    (folder / "mlflow.db").write_text("not a database" * 100)
    assert "does not open" in doctor(folder)[1]["mlflow store"]


def test_a_missing_folder_is_named_with_what_creates_it(tmp_path: Path) -> None:
    code, topics, output = doctor(tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{tmp_path}/not there/a.db")
    assert code == 1
    assert "its folder is missing" in topics["mlflow store"]
    assert shlex.join(["mkdir", "-p", f"{tmp_path}/not there"]) in output


def test_a_server_that_is_away_is_reported_without_its_password(tmp_path: Path) -> None:
    code, topics, output = doctor(tmp_path, MLFLOW_TRACKING_URI="http://someone:secret@127.0.0.1:9")
    assert code == 1
    assert "http://127.0.0.1:9" in topics["mlflow store"]
    assert "secret" not in output
