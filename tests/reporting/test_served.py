"""The model as MLflow serves it: over HTTP, in the user's own ids, with the numbers of ``gptf predict``."""

import csv as csv_module
import json
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import ROOT, Server, free_port, running, tool

NAMES = ["user", "item", "day", "mean", "std", "lower", "upper"]


@pytest.fixture(scope="module")
def served(server: Server, logged: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port, environment = free_port(), {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    command = [tool("mlflow"), "models", "serve", "--model-uri", "models:/served@champion", "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "--port", port]
    log = tmp_path_factory.mktemp("served") / "log"
    environment["PATH"] = f"{tool('mlflow').parent}{os.pathsep}{os.environ['PATH']}"
    with running(Server(command, port, log, environment)) as found:
        yield found


def ask(served: Server, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{served.uri}/invocations", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["predictions"]


def predicted(logged: Any, rows: list[list[Any]], folder: Path, *flags: str) -> list[dict[str, Any]]:
    """What ``gptf predict`` writes of the rows."""
    given, found = folder / "rows.csv", folder / "found.csv"
    with given.open("w", newline="") as file:
        csv_module.writer(file).writerows([NAMES[:3], *rows])
    subprocess.run([tool("gptf"), "predict", logged.output, given, "--output", found, *flags], check=True)
    with found.open(newline="") as file:
        return list(csv_module.DictReader(file))


def test_an_answer_equals_gptf_predict_exactly(served: Server, logged: Any, csv: Path, tmp_path: Path) -> None:
    with csv.open(newline="") as file:
        rows = [[*row[:2], int(row[2])] for row in list(csv_module.reader(file))[1:]]
    found = ask(served, {"dataframe_split": {"columns": NAMES[:3], "data": rows}})
    wanted = predicted(logged, rows, tmp_path)
    assert len(found) == len(wanted) == len(rows)
    for mine, theirs in zip(found, wanted, strict=True):
        assert list(mine) == NAMES
        assert [mine[name] for name in NAMES[3:]] == [float(theirs[name]) for name in NAMES[3:]]
        assert [str(mine[name]) for name in NAMES[:3]] == [theirs[name] for name in NAMES[:3]]


def test_an_unseen_id_follows_the_policy(served: Server, logged: Any, tmp_path: Path) -> None:
    rows = [["nobody", "item 3", 2]]
    content: dict[str, Any] = {"dataframe_split": {"columns": NAMES[:3], "data": rows}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(served, content)
    assert refused.value.code == 400
    assert "'nobody'" in refused.value.read().decode()
    (found,) = ask(served, {**content, "params": {"unseen": "prior"}})
    (wanted,) = predicted(logged, rows, tmp_path, "--unseen", "prior")
    assert (found["mean"], found["std"]) == (float(wanted["mean"]), float(wanted["std"]))


def test_mlflow_models_predict_answers_too(server: Server, logged: Any, tmp_path: Path) -> None:
    rows = [["u,1", "item 3", 2]]
    asked, answered = tmp_path / "asked.json", tmp_path / "answered.json"
    asked.write_text(json.dumps({"dataframe_split": {"columns": NAMES[:3], "data": rows}}))
    command = [tool("mlflow"), "models", "predict", "--model-uri", "models:/served@champion", "--env-manager", "local"]
    command += ["--input-path", asked, "--output-path", answered, "--content-type", "json"]
    environment = {**os.environ, "MLFLOW_TRACKING_URI": server.uri, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"}
    environment["PATH"] = f"{tool('mlflow').parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(answered.read_text())["predictions"]
    (wanted,) = predicted(logged, rows, tmp_path)
    assert found["mean"] == float(wanted["mean"])


def test_nothing_in_the_model_is_a_pickle(server: Server, logged: Any, tmp_path: Path, monkeypatch: Any) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    folder = Path(mlflow.artifacts.download_artifacts("models:/served@champion", dst_path=str(tmp_path)))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    for path in files:
        assert path.suffix not in {".pkl", ".pt", ".bin", ".joblib"}
        assert path.read_bytes()[:1] != b"\x80", path  # how a pickle begins


def test_mlflow_run_trains(server: Server, csv: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "MLFLOW_TRACKING_URI": server.uri}
    environment["PATH"] = f"{tool('mlflow').parent}{os.pathsep}{os.environ['PATH']}"
    command = [tool("mlflow"), "run", ROOT / "mlflow", "-e", "train", "--env-manager", "local"]
    parameters = {"data": csv, "output": tmp_path / "run", "rank": 2, "inducing": 10, "max_iterations": 3}
    command += [word for name, value in parameters.items() for word in ("-P", f"{name}={value}")]
    done = subprocess.run([*command, "--experiment-name", "project"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    from mlflow.tracking import MlflowClient

    client = MlflowClient(server.uri)
    (run,) = client.search_runs([client.get_experiment_by_name("project").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["max_iterations"] == "3"
    assert run.data.tags["mlflow.project.entryPoint"] == "train"
    assert "final_bound" in run.data.metrics
