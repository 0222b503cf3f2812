"""The tables of the paper: every method on every data set, at every rank and fold. What is finished is not done again.

python experiments/run.py small                                    # a night: Alog, Enron, and tensorly's tensors
python experiments/run.py small --quick                            # one fold, the lowest rank, every method
python experiments/run.py large --data acc --only ours-lbfgs --only mean
python experiments/run.py smoke                                    # synthetic, every method once; keeps nothing

The methods and their options are in configs/TABLE.toml, what comes of them in results/TABLE.json, from which figures are drawn at
the end, and every fit is a nested run in MLflow (`make ui`). GPTF_DATA_DIR says where the data are, or are downloaded to.
"""

import importlib
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import click
import torch
from benchmarks.common import machine
from datasets import load
from logged import Log, MlflowLog
from methods import make
from plan import CONFIGS, TABLES, Cell, Plan
from rich.console import Console
from rich.table import Table
from scores import rows, score
from store import RESULTS, Store

from gptf_gpytorch import GPTFError, TensorEntries

PATH = click.Path(path_type=Path)
FIGURES = Path(__file__).parent / "plots" / "experiments.py"
# What k-means, torch's Adam and compiled loops load when they are first used: not part of any fit's seconds.
LOADED_LATE = ("sklearn.cluster", "torch._dynamo", "gptf_gpytorch.variational.compiled")


@click.command(help=__doc__)
@click.argument("table", type=click.Choice([*TABLES, "smoke", "all"]))
@click.option(
    "--quick",
    is_flag=True,
    help="The first fold and the lowest rank, every method, on data sets that do not take long.",
)
@click.option("--only", "labels", multiple=True, metavar="METHOD", help="Its label in the file; may be repeated.")
@click.option("--data", multiple=True, metavar="NAME", help="May be repeated.")
@click.option("--folds", multiple=True, type=int, help="May be repeated.")
@click.option("--ranks", multiple=True, type=int, help="May be repeated.")
@click.option("--track", type=click.Choice(["mlflow", "none"]), default="mlflow", show_default=True)
@click.option("--results", type=PATH, default=None, help=f"A folder; by default {RESULTS.name} here, none for smoke.")
@click.option("--configs", type=PATH, default=CONFIGS, help="Another folder of tables.")
def main(table: str, track: str, results: Path | None, configs: Path, **part: Any) -> None:
    """Fit what is missing, and print the table."""
    with tempfile.TemporaryDirectory() as nowhere:
        folder = results or (Path(nowhere) if table == "smoke" else RESULTS)
        failed = []
        for name in TABLES if table == "all" else (table,):
            try:
                plan = Plan.read(name, configs).only(**part)
            except GPTFError as error:
                raise click.UsageError(str(error)) from error
            store = Store(folder, name)
            failed += run(plan, store, track)
            show(plan, store)
        if table != "smoke" and configs == CONFIGS:
            subprocess.run([sys.executable, FIGURES, "--results", folder], check=True)
        if failed:
            sys.exit(f"{len(failed)} fits failed: {', '.join(failed)}")


def run(plan: Plan, store: Store, track: str) -> list[str]:
    """Fit the cells that are not in the store; the places of those that failed."""
    done = store.cells
    missing = [cell for cell in plan.cells if cell.key not in done]
    click.echo(f"{plan.name}: {len(plan.cells) - len(missing)} of {len(plan.cells)} fits are there")
    failed = []
    if missing:
        with store.alone():  # MLflow must not make its database twice
            opened = MlflowLog(plan) if track == "mlflow" else Log()
        with opened as log:
            for number, cell in enumerate(missing, start=1):
                try:
                    log.begin(cell)
                    result, series = fitted(cell)
                    store.add(cell, result, machine())
                    log.end(result, series)
                    shown = "  ".join(f"{name} {sum(v) / len(v):.4f}" for name, v in result["metrics"].items())
                    click.echo(f"[{number}/{len(missing)}] {cell.place}  {shown}  {result['seconds']:.1f} s")
                except Exception as error:  # the others are fitted all the same
                    log.end(None)
                    failed.append(cell.place)
                    if not isinstance(error, GPTFError):
                        traceback.print_exc()
                    click.echo(f"[{number}/{len(missing)}] {cell.place} failed: {error}", err=True)
    return failed


def fitted(cell: Cell) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """What comes of a fit, for JSON, and the numbers of its steps."""
    split = load(cell.data, cell.fold)
    method = make(cell.method, cell.options)
    for library in LOADED_LATE:
        importlib.import_module(library)
    torch.manual_seed(cell.seed)
    started = time.perf_counter()
    found = method.fit(split.task(cell.rank or 1, cell.seed))
    seconds = time.perf_counter() - started
    every = TensorEntries.concat(split.tests)
    predicted = iter(torch.as_tensor(found.predict(every.indices)).split([len(test) for test in split.tests]))
    scored = [
        score(
            test.values.double().numpy(),
            next(predicted).numpy(),
            binary=split.binary,
            probabilities=found.probabilities,
        )
        for test in split.tests
    ]
    details = dict(found.details)
    series = details.pop("series", {})  # for MLflow alone
    result = {
        "metrics": {name: [one[name] for one in scored] for name in scored[0]},
        "seconds": seconds,
        "method": cell.method,
        "options": dict(cell.options),
        "seed": cell.seed,
        "details": details,
    }
    return result, series


def show(plan: Plan, store: Store) -> None:
    """Print the table: means over folds and test sets, standard errors, and paired t-tests against ours."""
    table = Table("data", "method", "rank", "metric", "mean", "standard error", f"p against {plan.ours}", "s a fit")
    for row in rows(plan, store.cells):
        error, p = ("" if value is None else f"{value:.2g}" for value in (row.error, row.p))
        rank = "" if row.rank is None else str(row.rank)
        table.add_row(row.data, row.label, rank, row.metric, f"{row.mean:.4f}", error, p, f"{row.seconds:.1f}")
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
