"""The server for a team, as documented: it refuses to start without secrets of its own, and writes without a password."""

import base64
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import ROOT, Server, free_port, running, tool

pytest.importorskip("flask_wtf", reason="basic authentication needs mlflow[auth]: pip install -e '.[mlflow]'")

PASSWORD = "correct horse battery staple"  # noqa: S105
SCRIPT = ROOT / "mlflow" / "team-server.sh"


def settings(folder: Path, store: str, password: str | None = None) -> dict[str, str]:
    config, secret = folder / "basic_auth.ini", folder / "secret"
    config.write_text(
        "[mlflow]\ndefault_permission = READ\n"
        f"database_uri = sqlite:///{folder / 'auth.db'}\nadmin_username = admin\n"
        f"admin_password = {PASSWORD if password is None else password}\n"
    )
    secret.write_text("a secret of this test")
    config.chmod(0o600)
    secret.chmod(0o600)
    return {
        "MLFLOW_BACKEND_STORE_URI": store,
        "MLFLOW_ARTIFACTS_DESTINATION": str(folder / "artifacts"),
        "MLFLOW_AUTH_CONFIG_PATH": str(config),
        "MLFLOW_FLASK_SERVER_SECRET_KEY_FILE": str(secret),
        "MLFLOW_SERVER_ALLOWED_HOSTS": "127.0.0.1:*,localhost:*",
    }


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, port = tmp_path_factory.mktemp("team"), free_port()
    environment = settings(folder, f"sqlite:///{folder / 'mlflow.db'}")
    with running(Server([SCRIPT, "127.0.0.1", port], port, folder / "log", environment)) as found:
        yield found


def post(server: Server, headers: dict[str, str]) -> int:
    """The status of an attempt to make an experiment."""
    url = f"{server.uri}/api/2.0/mlflow/experiments/create"
    request = urllib.request.Request(url, b'{"name": "mine"}', {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_a_write_without_a_password_is_refused(team: Server) -> None:
    assert post(team, {}) == 401


def test_a_write_with_the_password_is_taken(team: Server) -> None:
    word = base64.b64encode(f"admin:{PASSWORD}".encode()).decode()
    assert post(team, {"Authorization": f"Basic {word}"}) == 200


def test_another_host_name_is_refused(team: Server) -> None:
    assert post(team, {"Host": "evil.example.com"}) == 403


@pytest.mark.parametrize(
    "missing", ["MLFLOW_AUTH_CONFIG_PATH", "MLFLOW_SERVER_ALLOWED_HOSTS", "MLFLOW_BACKEND_STORE_URI"]
)
def test_every_setting_must_be_there(tmp_path: Path, missing: str) -> None:
    environment = {**os.environ, **settings(tmp_path, "sqlite://")}
    del environment[missing]
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"team-server.sh: {missing} must be set. Got nothing.\n")


@pytest.mark.parametrize(
    ("password", "rule"), [("", "must be set"), ("password1234", "must not be the one that MLflow")]
)
def test_the_password_must_be_the_teams_own(tmp_path: Path, password: str, rule: str) -> None:
    environment = {**os.environ, **settings(tmp_path, "sqlite://", password)}
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert rule in done.stderr


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    environment = {**os.environ, **settings(tmp_path, "sqlite://")}
    (tmp_path / "secret").chmod(0o644)
    done = subprocess.run([SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "must be its owner's alone" in done.stderr


BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    """The address of a database server of this test's own, which does not run as root."""
    if not BINARIES or (os.getuid() == 0 and not shutil.which("runuser")):
        pytest.skip("PostgreSQL is not installed")
    pytest.importorskip("psycopg2", reason="PostgreSQL needs psycopg2-binary: pip install -e '.[dev]'")
    folder, port = Path(tempfile.mkdtemp(prefix="gptf-postgresql-")), free_port()
    somebody = ["runuser", "-u", "nobody", "--"] if os.getuid() == 0 else []
    if somebody:
        shutil.chown(folder, "nobody")
    data = folder / "data"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    initdb = [*somebody, BINARIES[-1] / "initdb", "-D", data, "-U", "mlflow", "--auth=trust"]
    subprocess.run(initdb, check=True, **quiet)
    command = [*somebody, BINARIES[-1] / "postgres", "-D", data, "-k", folder, "-h", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, **quiet)
    try:
        import psycopg2

        for _ in range(100):
            try:
                psycopg2.connect(host="127.0.0.1", port=port, user="mlflow", dbname="postgres").close()
                break
            except psycopg2.OperationalError:
                time.sleep(0.2)
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def test_runs_are_kept_in_postgresql(postgresql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient
    from small_tensor import make_entries

    from gptf_gpytorch import MLflowTracker, fit

    port = free_port()
    team = Server([SCRIPT, "127.0.0.1", port], port, tmp_path / "log", settings(tmp_path, postgresql))
    with running(team):
        for name, value in {"URI": team.uri, "USERNAME": "admin", "PASSWORD": PASSWORD}.items():
            monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
        tracker = MLflowTracker()
        fit(make_entries(200), method="paper", rank=1, inducing=10, max_iterations=3, tracker=tracker)
        # The server hashes a password for every request, and may be busy.
        until = time.monotonic() + 150.0
        while (trouble := tracker.trouble) and time.monotonic() < until:
            subprocess.run([tool("gptf"), "sync", trouble.rpartition(" ")[2]], check=False)
        assert tracker.trouble is None
        run = MlflowClient(team.uri).get_run(tracker.run_id or tracker.journal.sent["run_id"])
        assert (run.info.status, run.data.metrics["final_steps"]) == ("FINISHED", 3.0)
