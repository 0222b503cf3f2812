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
from servers import Server, free_port, running, tool

MODES = ["user", "item", "day"]


@pytest.fixture(scope="module", params=["gaussian", "probit"])
def model(request: pytest.FixtureRequest) -> Any:
    """A run on real values, and one on labels."""
    return request.getfixturevalue("logged" if request.param == "gaussian" else "labels")


def uri(model: Any) -> str:
    return f"models:/{model.tracker.register['name']}@champion"


def names(model: Any) -> list[str]:
    """The numbers of an answer."""
    return ["mean", "std", *(["probability"] if model.result.fitted.binary else []), "lower", "upper"]


def environment(server: Server) -> dict[str, str]:
    path = f"{tool('mlflow').parent}{os.pathsep}{os.environ['PATH']}"
    return {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false", "PATH": path}


@pytest.fixture(scope="module")
def served(server: Server, model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port, log = free_port(), tmp_path_factory.mktemp("served") / "log"
    command = [tool("mlflow"), "models", "serve", "--model-uri", uri(model), "--env-manager", "local"]
    command += ["--host", "127.0.0.1", "--port", port]
    with running(Server(command, port, log, environment(server))) as found:
        yield found


def test_a_model_has_a_signature_and_an_example(model: Any, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    info = mlflow.models.get_model_info(uri(model))
    assert info.signature.inputs.input_names() == MODES
    assert info.signature.outputs.input_names() == [*MODES, *names(model)]
    (kept,) = (Path(mlflow.artifacts.download_artifacts(uri(model))) / name for name in ["input_example.json"])
    assert json.loads(kept.read_text())["columns"] == MODES


def ask(served: Server, content: dict[str, Any]) -> Any:
    request = urllib.request.Request(
        f"{served.uri}/invocations", json.dumps(content).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)["predictions"]


def predicted(model: Any, rows: list[list[Any]], folder: Path, *flags: str) -> list[dict[str, Any]]:
    """What ``gptf predict`` writes of the rows."""
    given, found = folder / "rows.csv", folder / "found.csv"
    with given.open("w", newline="") as file:
        csv_module.writer(file).writerows([MODES, *rows])
    subprocess.run([tool("gptf"), "predict", model.output, given, "--output", found, *flags], check=True)
    with found.open(newline="") as file:
        return list(csv_module.DictReader(file))


def test_an_answer_equals_gptf_predict_exactly(served: Server, model: Any, tmp_path: Path) -> None:
    with model.data.open(newline="") as file:
        rows = [[*row[:2], int(row[2])] for row in list(csv_module.reader(file))[1:]]
    found = ask(served, {"dataframe_split": {"columns": MODES, "data": rows}})
    wanted = predicted(model, rows, tmp_path)
    assert len(found) == len(wanted) == len(rows)
    for mine, theirs in zip(found, wanted, strict=True):
        assert list(mine) == [*MODES, *names(model)]
        assert [mine[name] for name in names(model)] == [float(theirs[name]) for name in names(model)]
        assert [str(mine[name]) for name in MODES] == [theirs[name] for name in MODES]


def test_an_unseen_id_follows_the_policy(served: Server, model: Any, tmp_path: Path) -> None:
    rows = [["nobody", "item 3", 2]]
    content: dict[str, Any] = {"dataframe_split": {"columns": MODES, "data": rows}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(served, content)
    assert refused.value.code == 400
    assert "'nobody'" in refused.value.read().decode()
    (found,) = ask(served, {**content, "params": {"unseen": "prior"}})
    (wanted,) = predicted(model, rows, tmp_path, "--unseen", "prior")
    assert [found[name] for name in names(model)] == [float(wanted[name]) for name in names(model)]


def test_mlflow_models_predict_answers_too(server: Server, model: Any, tmp_path: Path) -> None:
    rows = [["u,1", "item 3", 2]]
    asked, answered = tmp_path / "asked.json", tmp_path / "answered.json"
    asked.write_text(json.dumps({"dataframe_split": {"columns": MODES, "data": rows}}))
    command = [tool("mlflow"), "models", "predict", "--model-uri", uri(model), "--env-manager", "local"]
    command += ["--input-path", asked, "--output-path", answered, "--content-type", "json"]
    done = subprocess.run(command, env={**os.environ, **environment(server)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(answered.read_text())["predictions"]
    (wanted,) = predicted(model, rows, tmp_path)
    assert [found[name] for name in names(model)] == [float(wanted[name]) for name in names(model)]


def test_nothing_in_the_model_is_a_pickle(server: Server, model: Any, tmp_path: Path, monkeypatch: Any) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    folder = Path(mlflow.artifacts.download_artifacts(uri(model), dst_path=str(tmp_path)))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files)
    for path in files:
        assert path.suffix not in {".pkl", ".pt", ".bin", ".joblib"}
        assert path.read_bytes()[:1] != b"\x80", path  # how a pickle begins
