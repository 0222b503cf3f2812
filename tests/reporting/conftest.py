"""A real tracking server, and a run that was logged to it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from logged_runs import wait_for
from servers import Server, running, tracking_server

from gptf_gpytorch import MLflowTracker, fit
from gptf_gpytorch.data import TensorEntries, read
from gptf_gpytorch.training.result import Result

pytest.importorskip("mlflow.tracking", reason="tracking needs the extra mlflow: pip install -e '.[mlflow]'")


@dataclass
class Logged:
    """A run, and what MLflow has of it."""

    result: Result
    tracker: MLflowTracker
    data: Path
    output: Path
    client: Any

    @property
    def run(self) -> Any:
        return self.client.get_run(self.tracker.journal.sent["run_id"])


def write_csv(path: Path, entries: TensorEntries) -> Path:
    """Entries with ids that are words, one with a comma."""
    rows = [
        f'"u,{i}",item {j},{k},{value!r}\n'
        for (i, j, k), value in zip(entries.indices.tolist(), entries.values.tolist(), strict=True)
    ]
    path.write_text("user,item,day,value\n" + "".join(rows))
    return path


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(tracking_server(tmp_path_factory.mktemp("mlflow"))) as found:
        yield found


@pytest.fixture
def client(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow, set to the server as a user would."""
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return MlflowClient(server.uri)


@pytest.fixture(scope="session")
def csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from small_tensor import make_entries

    return write_csv(tmp_path_factory.mktemp("data") / "train.csv", make_entries(600))


@pytest.fixture(scope="session")
def logged(server: Server, csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """A run of which everything is logged."""
    tracker = MLflowTracker(
        "first", name="a run", source=csv, tags={"team": "ads"}, register="served", alias="champion"
    )
    return log(server, csv, tmp_path_factory.mktemp("runs") / "run", tracker, restarts=2)


@pytest.fixture(scope="session")
def labels(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Logged:
    """A run on labels."""
    from small_tensor import make_entries

    folder = tmp_path_factory.mktemp("labels")
    csv = write_csv(folder / "train.csv", make_entries(600, binary=True))
    tracker = MLflowTracker("labels", source=csv, register="labels", alias="champion")
    return log(server, csv, folder / "run", tracker, likelihood="probit")


def log(server: Server, csv: Path, output: Path, tracker: MLflowTracker, **options: Any) -> Logged:
    from mlflow.tracking import MlflowClient

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "MLFLOW_TRACKING_URI", server.uri)
        binary = options.get("likelihood") == "probit"
        settings = {"method": "paper", "rank": 2, "inducing": 15, "max_iterations": 6, **options}
        result = fit(read(csv, binary=binary), **settings, tracker=tracker, output=output)
    wait_for(tracker.journal)
    return Logged(result, tracker, csv, output, MlflowClient(server.uri))
