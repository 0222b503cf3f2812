"""The store that MLflow would log to: where it is, whether it opens, and what to do if not."""

import importlib
import importlib.metadata
import logging
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from gptf_gpytorch.health import Fact, pip_install

_SQLITE = "sqlite:///"
# One try of a few seconds: a server that is away is reported, not waited for.
_LEFTOVER = "a leftover ./mlruns makes MLflow choose a store that it refuses"
_BOUNDED = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}


def describe() -> Iterator[Fact]:
    """Whether MLflow is installed and the store that a run would be logged to opens."""
    try:
        version = importlib.metadata.version("mlflow")
    except importlib.metadata.PackageNotFoundError:
        yield Fact("mlflow", "not installed: runs are not tracked", "missing", pip_install("mlflow"))
        return
    try:
        # Not `import mlflow`: a folder of that name in the working directory would answer for it.
        importlib.import_module("mlflow.tracking")
    except Exception as error:
        remedy = f"{pip_install('mlflow')} --force-reinstall"
        yield Fact("mlflow", f"{version} does not import: {_first_line(error)}", "broken", remedy)
        return
    yield Fact("mlflow", version)
    yield _store()


def _store() -> Fact:
    """Open the store a run would go to, without creating one that is not there yet."""
    mlflow = importlib.import_module("mlflow")
    uri = str(mlflow.get_tracking_uri())
    shown = unquote(_without_password(uri))
    # An absolute path comes percent-encoded.
    file = Path(unquote(uri.removeprefix(_SQLITE).partition("?")[0])) if uri.startswith(_SQLITE) else None
    try:
        if file is None or file.exists():
            _open(uri)
            return Fact("mlflow store", f"{shown} opens")
        folder = file.resolve().parent
        if not folder.is_dir():
            remedy = shlex.join(["mkdir", "-p", str(folder)])
            return Fact("mlflow store", f"{shown} cannot be created: its folder is missing", "broken", remedy)
        if not os.access(folder, os.W_OK):
            remedy = f"{shlex.join(['chmod', 'u+w', str(folder)])}, or set MLFLOW_TRACKING_URI"
            return Fact("mlflow store", f"{shown} cannot be created: not writable", "broken", remedy)
        with tempfile.TemporaryDirectory() as temporary:
            _open(f"{_SQLITE}{temporary}/mlflow.db")
        return Fact("mlflow store", f"{shown} will be created by the first run")
    except Exception as error:
        remedy = "set MLFLOW_TRACKING_URI to a store that opens, e.g. sqlite:///mlflow.db"
        if _leftover():
            remedy = f"mv mlruns mlruns.old   ({_LEFTOVER})"
        return Fact("mlflow store", f"{shown} does not open: {_first_line(error)}", "broken", remedy)


def absolute(uri: str) -> str:
    """The same store, wherever it is named from."""
    if not uri.startswith(_SQLITE) or uri.startswith(f"{_SQLITE}/"):
        return uri
    return f"{_SQLITE}{Path(uri.removeprefix(_SQLITE)).resolve()}"


def explain(error: Exception) -> str:
    """What MLflow says went wrong, on one line, with what helps if that is known."""
    if _leftover():
        return f"MLflow must have a store that it accepts. Got none: {_LEFTOVER}; mv mlruns mlruns.old."
    return _first_line(error)


def bound_requests() -> None:
    """Let MLflow's requests in this process give up soon, unless the user has said when: whoever asks comes again."""
    for name, value in _BOUNDED.items():
        os.environ.setdefault(name, value)


def _leftover() -> bool:
    """Whether runs of an old MLflow lie in the working directory, and nothing says that they are not to be used."""
    return "MLFLOW_TRACKING_URI" not in os.environ and any(Path("mlruns").glob("[0-9]*/meta.yaml"))


def _open(uri: str) -> None:
    client = importlib.import_module("mlflow.tracking").MlflowClient
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.ERROR)
    with _environment(_BOUNDED):
        client(uri).search_experiments(max_results=1)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the length of a block: MLflow takes these settings in no other way."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name)
            if name in before:
                os.environ[name] = before[name]


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return _without_password(lines[0]) if lines else type(error).__name__


def _without_password(text: str) -> str:
    """The text with the user name and password of any address in it left out."""
    return re.sub(r"://[^/\s]*@", "://", text)
