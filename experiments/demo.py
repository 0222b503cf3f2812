"""A first look: a real tensor, a live bar, and what the model predicts of the entries that were held out.

The tensor is the COVID-19 serology data inside tensorly's wheel (samples x antigens x receptors, complete). A seeded tenth of
the entries is held out; the model is compared with the training mean and with CP at the same rank, from tensorly.

python experiments/demo.py [--output runs/demo] [--rank 3] [--track none]
horovodrun -np 2 python experiments/demo.py --output runs/demo-horovod
"""

import csv
import math
import os
import shutil
import sys
from pathlib import Path

import click
import numpy as np
import tensorly.datasets
from rich.console import Console
from rich.table import Table
from tensorly.cp_tensor import cp_to_tensor
from tensorly.decomposition import parafac

from gptf_gpytorch.data import read
from gptf_gpytorch.distributed.communicator import current
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.reporting import report
from gptf_gpytorch.reporting.mlflow_tracker import MLflowTracker
from gptf_gpytorch.serving.metrics import evaluate
from gptf_gpytorch.training.fit import fit
from gptf_gpytorch.training.progress import ProgressPrinter

Array = np.ndarray
MARK = ".gptf-demo"  # says that a folder is one of the demo's own


@click.command(help=__doc__)
@click.option("--output", default="runs/demo", show_default=True, type=click.Path(path_type=Path))
@click.option("--rank", default=3, show_default=True)
@click.option("--max-iterations", default=150, show_default=True)
@click.option("--track", type=click.Choice(["none", "mlflow"]), default="mlflow", show_default=True)
def main(output: Path, rank: int, max_iterations: int, track: str) -> None:
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
        method="paper",
        rank=rank,
        inducing=100,
        max_iterations=max_iterations,
        communicator=workers,
        tracker=[ProgressPrinter(), *([logged] if logged else [])],
        output=output / "run",
    )
    workers.close()
    if workers.rank:
        return
    scores = {f"this model, rank {rank}": evaluate(result.fitted, test)}
    observed = tensor[~held_out]
    scores["training mean"] = _scores(tensor[held_out], np.full(held_out.sum(), observed.mean()), observed.std())
    cp = cp_to_tensor(parafac(np.where(held_out, 0.0, tensor), rank, mask=~held_out, init="svd", n_iter_max=500))
    residual = float(np.sqrt(np.mean((cp - tensor)[~held_out] ** 2)))
    scores[f"CP (tensorly), rank {rank}"] = _scores(tensor[held_out], cp[held_out], residual)
    figures = output / "figures"
    report.draw(result, figures)
    report.draw_predictions(result.fitted, test, figures)
    table = Table("held-out tenth", "RMSE", "mean log predictive density")
    for name, score in scores.items():
        table.add_row(name, f"{score['rmse']:.3f}", f"{-score['nlpd']:.3f}")
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


def _scores(observed: Array, mean: Array, spread: float) -> dict[str, float]:
    """The scores of a normal prediction with one standard deviation, that of the training residuals."""
    error = observed - mean
    density = -0.5 * math.log(2.0 * math.pi * spread**2) - 0.5 * float(np.mean(error**2)) / spread**2
    return {"rmse": float(np.sqrt(np.mean(error**2))), "nlpd": -density}


if __name__ == "__main__":
    main()
