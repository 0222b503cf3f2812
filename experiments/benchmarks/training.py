"""What a user waits for: training on Alog, a million predictions, a recommendation, the import.

Alog is looked for in GPTF_DATA_DIR; without it a tensor of the same size is made.

python experiments/benchmarks/training.py
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import common
import numpy as np
import pyarrow as pa
import pyarrow.csv

from gptf_gpytorch import FittedModel, TensorEntries, fit, read
from gptf_gpytorch.serving.metrics import evaluate
from gptf_gpytorch.serving.recommend import recommend

GPTF = Path(sys.executable).with_name("gptf")
IMPORT = "import time, gpytorch; t = time.perf_counter(); import gptf_gpytorch; print(time.perf_counter() - t)"


@click.command(help=__doc__)
def main() -> None:
    """Measure, print, keep the JSON."""
    result: dict[str, Any] = {}
    train, test, name = _alog()
    # All 200 steps: nothing is held out that could end them.
    options: dict[str, Any] = {"method": "paper", "rank": 3, "inducing": 100, "max_iterations": 200}
    options |= {"tolerance": 0.0, "validation": 0.0}
    # The first fit after an installation compiles the loops, which are then kept on the disk.
    first, _ = _timed(lambda: fit(train, gradient_tolerance=0.0, **{**options, "max_iterations": 1}))
    seconds, run = _timed(lambda: fit(train, gradient_tolerance=0.0, **options))
    result["training"] = {
        "one step, compiling what was not yet, seconds": first,
        "data": name,
        "entries": len(train),
        "iterations": run.history.steps[-1].iteration,
        "seconds": seconds,
        "test": None if test is None else evaluate(run.fitted, test),
    }
    click.echo(result["training"])
    with tempfile.TemporaryDirectory() as folder:
        result |= _serving(Path(folder))
    imports = [
        float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, check=True).stdout) for _ in range(5)
    ]
    result["import seconds beyond gpytorch"] = sorted(imports)[2]
    click.echo(json.dumps(result, indent=1))
    common.write("training", result)


def _timed(job: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    found = job()
    return time.perf_counter() - started, found


def _alog() -> tuple[TensorEntries, TensorEntries | None, str]:
    folder = Path(os.environ.get("GPTF_DATA_DIR", "")) / "alog"
    if not folder.is_dir():
        indices, y = common.entries(21_076, shape=(200, 100, 200))
        return TensorEntries(indices, y, shape=(200, 100, 200)), None, "synthetic, of Alog's size"
    columns: dict[str, Any] = {"format": "csv", "columns": ["user", "action", "resource", "value"], "index_base": 1}
    parts = [
        read(folder / f"{part}-fold-1.txt", shape=(200, 100, 200), duplicates="keep", **columns)
        for part in ("train", "test")
    ]
    return parts[0], parts[1], "Alog, fold 1"


def _serving(folder: Path) -> dict[str, float]:
    """A model of 100,000 users: predictions through the command, and one recommendation."""
    rng = np.random.default_rng(0)
    sizes = {"user": 100_000, "ad": 5_000, "page": 300}
    ids = {mode: np.array([f"{mode} {n}" for n in range(size)]) for mode, size in sizes.items()}
    rows = {mode: rng.integers(size, size=1_000_000) for mode, size in sizes.items()}
    for mode, size in sizes.items():  # everyone is seen in training
        rows[mode][:size] = rng.permutation(size)
    table = pa.table({mode: ids[mode][rows[mode]] for mode in sizes} | {"value": rng.normal(size=1_000_000)})
    pa.csv.write_csv(table.slice(0, 200_000), folder / "train.csv")
    pa.csv.write_csv(table.drop(["value"]), folder / "new.csv")
    entries = read(folder / "train.csv", duplicates="last")
    fit(entries, method="paper", inducing=100, max_iterations=2, output=folder / "run")
    command = [GPTF, "predict", folder / "run", folder / "new.csv", "--output", folder / "out.csv"]
    predicted, _ = _timed(lambda: subprocess.run(command, check=True, capture_output=True))
    fitted = FittedModel.load(folder / "run")
    given = {"ad": ids["ad"][0], "page": ids["page"][0]}
    recommended = sorted(_timed(lambda: recommend(fitted, given, "user"))[0] for _ in range(5))
    return {
        "gptf predict of 1e6 rows, seconds": predicted,
        "recommend over 1e5 candidates, seconds": recommended[2],
        "recommend over 1e5 candidates, first call, seconds": recommended[-1],
    }


if __name__ == "__main__":
    main()
