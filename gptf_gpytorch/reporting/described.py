"""What MLflow is told of a run: its parameters, tags, data set and files, and the numbers of its steps."""

import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.tracking import mlflow_store
from gptf_gpytorch.training.problem import digest
from gptf_gpytorch.training.saved import FittedModel

_PACKAGES = ("gptf_gpytorch", "torch", "gpytorch", "linear_operator", "numpy", "horovod", "mlflow")
_NUMBERS = (
    "bound",
    "gradient_norm",
    "outputscale",
    "noise",
    "lambda_passes",
    "seconds",
    "entries_per_second",
    "held_out",
)


def parameters(run: Mapping[str, Any]) -> dict[str, str]:
    """The configuration, in full, as a command line would have it."""
    found = {}
    for name, value in run["config"].items():
        found[name] = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return found


def tags(run: Mapping[str, Any]) -> dict[str, str]:
    """What and where."""
    installed = {name: _installed(name) for name in _PACKAGES}
    return {
        **{f"version.{name}": version for name, version in installed.items() if version},
        **({"mlflow.source.git.commit": commit} if (commit := _commit()) else {}),
        "mlflow.user": os.environ.get("USER", "") or os.environ.get("LOGNAME", "") or "unknown",
        "mlflow.source.name": Path(sys.argv[0]).name or "python",
        "workers": str(run["workers"]),
        "host": platform.node(),
        "likelihood": run["config"]["likelihood"],
        "shape": " x ".join(str(size) for size in run["modes"].values()),
        "modes": ", ".join(run["modes"]),
    }


def dataset(run: Mapping[str, Any], source: str | Path | None) -> dict[str, str]:
    """What MLflow keeps of a data set: for all runs of an experiment with the same entries, as the first of them says it."""
    return {
        "name": "entries" if source is None else Path(source).name,
        "digest": run["digest"][:36],
        "source_type": "local",
        "source": json.dumps({"uri": _uri(source)}),
        "profile": json.dumps({"entries": _all_entries(run), "modes": run["modes"]}),
    }


def _all_entries(run: Mapping[str, Any]) -> int:
    """Of the data set; a sampled model is trained on held-out entries, too, once its race is over."""
    entries: int = run["entries"]
    return entries if run["config"]["method"] == "sampled" else entries + run["held_out"]


def _uri(source: str | Path | None) -> str | None:
    return None if source is None else str(Path(source).resolve())


def evaluation(fitted: FittedModel, entries: TensorEntries) -> dict[str, Any]:
    """What there is to say of entries that a saved model is tried on, as of a run's."""
    return {
        "config": fitted.config.to_dict(),
        "workers": 1,
        "modes": dict(zip(entries.names, entries.shape, strict=True)),
        "digest": digest(entries),
        "entries": len(entries),
        "held_out": 0,
    }


def write_files(run: Mapping[str, Any], source: str | Path | None, reading: Mapping[str, Any], folder: Path) -> None:
    """The configuration, where the entries are from, and the environment, as files."""
    folder.mkdir(exist_ok=True)
    counts = {name: run[name] for name in ("entries", "held_out", "modes", "digest")}
    data = {"uri": _uri(source), "reading": dict(reading), **counts}
    (folder / "data.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "config.json").write_text(json.dumps(run["config"], indent=1) + "\n")
    found = sorted({f"{found.name}=={found.version}" for found in importlib.metadata.distributions()}, key=str.lower)
    (folder / "environment.txt").write_text("\n".join([f"# Python {platform.python_version()}", *found]) + "\n")


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a step, by the names they have in MLflow."""
    scales = {f"lengthscale.{place}": scale for place, scale in enumerate(record.get("lengthscales", ()))}
    terms = {f"term.{name}": term for name, term in record.get("terms", {}).items()}
    return {**{name: record[name] for name in _NUMBERS if record.get(name) is not None}, **terms, **scales}


def child(start: Mapping[str, Any]) -> dict[str, Any]:
    """A start of the paper's method, or a row of a race, as a nested run."""
    if "seed" in start:
        return {
            "name": f"start with seed {start['seed']}",
            "params": {"seed": start["seed"]},
            "values": {"bound": start["bound"]},
        }
    numbers = {name: number for name, number in start.items() if name != "name" and number is not None}
    return {
        "name": f"race: {start['name']}",
        "params": {"runner": start["name"]},
        "values": {name: number for name, number in numbers.items() if math.isfinite(number)},
    }


def chosen(experiment: str | None, *, nested: bool) -> dict[str, str | None]:
    """The store, the experiment and the run that the user has chosen, now: whoever sends may be set to others.

    :param nested: whether the run is to be one of its own all the same, inside another.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI")  # set_tracking_uri sets it, too, and set_experiment the id
    mlflow = sys.modules.get("mlflow")
    active = mlflow.active_run() if hasattr(mlflow, "active_run") else None  # type: ignore[union-attr]
    return {
        "uri": uri and mlflow_store.absolute(uri),
        "experiment": experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME"),
        "experiment_id": None if experiment else os.environ.get("MLFLOW_EXPERIMENT_ID"),
        "run_id": None if nested else str(active.info.run_id) if active else os.environ.get("MLFLOW_RUN_ID"),
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the project that the run is started in."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
