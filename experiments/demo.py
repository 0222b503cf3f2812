"""A first look: a real tensor, a live bar, and how well held-out entries are predicted.

The tensor is the COVID-19 serology data inside tensorly's wheel (samples x antigens x receptors, complete). A seeded tenth of
the entries is held out. ``fit`` with its defaults is compared with a factorization machine (myFM) and Bayesian CP (smurff), which
are Gibbs samplers too, with CP by ridge regression, with additive biases and with the training mean.

python experiments/demo.py [--output runs/demo] [--effort quick] [--rank 32] [--track none]
horovodrun -np 2 python experiments/demo.py --output runs/demo-horovod
"""

import csv
import os
import shutil
import sys
import time
from pathlib import Path
from typing import get_args

import click
import numpy as np
import tensorly.datasets
from baselines.base import Task
from methods import RANKLESS, make
from rich.console import Console
from rich.table import Table
from scores import score

from gptf_gpytorch.data import read
from gptf_gpytorch.distributed.communicator import current
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.reporting import report
from gptf_gpytorch.reporting.mlflow_tracker import MLflowTracker
from gptf_gpytorch.serving.metrics import evaluate
from gptf_gpytorch.training.config import Effort
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.progress import ProgressPrinter

Array = np.ndarray
RIVALS = {
    "factorization machine": "fm",
    "Bayesian CP": "smurff",
    "CP": "cp2",
    "additive biases": "additive",
    "training mean": "mean",
}
MARK = ".gptf-demo"  # says that a folder is one of the demo's own


@click.command(help=__doc__)
@click.option("--output", default="runs/demo", show_default=True, type=click.Path(path_type=Path))
@click.option("--effort", type=click.Choice(get_args(Effort)), default="normal", show_default=True)
@click.option("--rank", default=32, show_default=True, help="Of the methods compared with; this model chooses its own.")
@click.option("--track", type=click.Choice(["none", "mlflow"]), default="mlflow", show_default=True)
def main(output: Path, effort: Effort, rank: int, track: str) -> None:
    """Train, compare, draw, say what to type next."""
    workers = current()
    together(workers, lambda: _clear(output) if workers.rank == 0 else None)
    bunch = tensorly.datasets.load_covid19_serology()
    tensor = np.asarray(bunch.tensor)
    held_out = np.random.default_rng(0).random(tensor.shape) < 0.1
    names = [[f"sample {number}" for number in range(len(tensor))], *(list(ticks) for ticks in bunch.ticks[1:])]
    for part, mask in (("train", ~held_out), ("test", held_out)):
        path = output / f"{part}.csv"
        together(workers, lambda path=path, mask=mask: _write(path, tensor, mask, names) if workers.rank == 0 else None)
    train = read(output / "train.csv")
    test = read(
        output / "test.csv", vocabularies=dict(zip(train.names, train.vocabularies, strict=True)), duplicates="error"
    )
    logged = MLflowTracker(name="demo", source=output / "train.csv") if track == "mlflow" else None
    result = fit(
        train,
        effort=effort,
        communicator=workers,
        tracker=[ProgressPrinter(), *([logged] if logged else [])],
        output=output / "run",
    )
    workers.close()
    if workers.rank:
        return
    found = evaluate(result.fitted, test)
    table = Table("held-out tenth", "RMSE", "MAE", "seconds")
    table.add_row("this model", f"{found['rmse']:.3f}", f"{found['mae']:.3f}", f"{result.seconds:.1f}")
    for name, method in RIVALS.items():
        began = time.perf_counter()
        rival = make(method, {}).fit(Task(train, binary=False, rank=rank, seed=0))
        seconds = time.perf_counter() - began
        found = score(test.values.double().numpy(), rival.predict(test.indices), binary=False, probabilities=False)
        shown = name if method in RANKLESS else f"{name}, rank {rank}"
        table.add_row(shown, f"{found['rmse']:.3f}", f"{found['mae']:.3f}", f"{seconds:.1f}")
    figures = output / "figures"
    report.draw(result, figures)
    report.draw_predictions(result.fitted, test, figures)
    console = Console()
    console.print(table)
    console.print(
        f"model:   {output / 'run' / 'model'}", f"figures: {figures}", sep="\n", highlight=False, soft_wrap=True
    )
    if logged:
        console.print(f"MLflow:  {logged.trouble or 'make ui shows the run'}", highlight=False, soft_wrap=True)
    command = os.path.relpath(Path(sys.executable).with_name("gptf"))
    console.print(f"next:    {command} explain {output / 'run'} --near receptors=IgG1", highlight=False, soft_wrap=True)


def _clear(output: Path) -> None:
    """An empty folder; what an earlier demo left in it goes, and nothing else ever does."""
    mine = output / MARK
    if output.exists() and not mine.exists() and (not output.is_dir() or any(output.iterdir())):
        raise click.BadParameter(f"must be a new or empty folder, or one of an earlier demo. Got {output}.")
    output.mkdir(parents=True, exist_ok=True)
    mine.touch()
    for name in ("run", "figures"):
        shutil.rmtree(output / name, ignore_errors=True)


def _write(path: Path, tensor: Array, mask: Array, names: list[list[str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["samples", "antigens", "receptors", "value"])
        for cell in np.argwhere(mask):
            writer.writerow(
                [*(ids[row] for ids, row in zip(names, cell, strict=True)), repr(float(tensor[tuple(cell)]))]
            )


if __name__ == "__main__":
    main()
