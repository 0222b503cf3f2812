"""What the default model is worth beside its rivals, on entries held out of training sets; its rule was chosen here.

A tenth of each training set is held out, another one for each seed, and every row is fitted to the rest. Tensors are the first
training sets of the tables, and the panel (see ``experiments/panel.py``). Nothing here looks at a test set. What is in
``results/recipe.json`` already is not done again. Predictions are kept in a cache outside the repository, one file for each
tensor, row and seed. ``summary`` compares them and writes into the same JSON whether the targets hold.

Seconds are those of a fit, libraries loaded, prediction not counted: on the wall, and of all threads of the process. smurff has
one thread, as only then its chain can be repeated. Rivals get real values standardised.

python experiments/studies/recipe.py run [--data enron] [--rows "default normal"] [--seeds 0,1,2] [--again]
python experiments/studies/recipe.py summary [--row "default normal"]
"""

import importlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import pooch
import recipe_summary
import torch
from recipe_summary import Cell, Labels, Values
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
import datasets
import panel
from baselines.base import Array, Fitted, Task
from baselines.tools import hold_out
from methods import make
from store import RESULTS, Store

import gptf_gpytorch
from gptf_gpytorch import TensorEntries
from gptf_gpytorch.data import sample_zeros
from gptf_gpytorch.serving.predictions import predict

NAME = "recipe"
LARGE = ("acc", "dblp", "nell995", "avazu")
TENSORS = ("alog", "enron", "serology", "il2", *LARGE, *panel.TENSORS)
SEEDS = (0, 1, 2)
#: Zeros to rank the held-out ones among, as in the test sets: a number, or how many for each one.
MANY: dict[str, Callable[[int], int]] = {
    "enron": lambda ones: 8240,
    "dblp": lambda ones: 10 * ones,
    "nell995": lambda ones: 10 * ones,
}
_PACKAGES = ("gptf_gpytorch", "torch", "gpytorch", "myfm", "smurff", "scikit-learn")
_LOADED_LATE = ("sklearn.cluster", "torch._dynamo", "gptf_gpytorch.variational.compiled")


@dataclass(frozen=True)
class Problem:
    """Entries to fit to, and entries to predict.

    :param train: nine tenths of a training set.
    :param held_out: the rest.
    :param many: the ones that are held out, and many sampled zeros; None where the tests have no such.
    :param binary: whether values are labels in {0, 1}.
    """

    data: str
    train: TensorEntries
    held_out: TensorEntries
    many: TensorEntries | None
    binary: bool
    seed: int


def problem(data: str, seed: int) -> Problem:
    """The training set of a tensor, divided."""
    if data in panel.TENSORS:
        entries, binary = panel.load(data)
    else:
        split = datasets.load(data, 1)
        entries, binary = split.train, split.binary
    kept, held_out = hold_out(Task(entries, binary, rank=1, seed=seed))
    many = None
    if data in MANY:
        ones = held_out[held_out.values == 1]
        # Not in a cell of the training set; which cells are in test sets is not looked up.
        many = TensorEntries.concat([ones, sample_zeros(entries, MANY[data](len(ones)), seed=seed)])
    return Problem(data, kept.train, held_out, many, binary, seed)


@dataclass(frozen=True)
class Predicted:
    """Predictions of n entries, each an array `[n]`.

    :param mean: the value; of a label its probability, or a score that grows with it.
    :param std: of an observation, and the ends of its 95% interval; None where the row has none, as for labels.
    """

    mean: Array
    std: Array | None = None
    lower: Array | None = None
    upper: Array | None = None
    probabilities: bool = False


Answer = Callable[[Tensor], Predicted]
Fit = Callable[[Problem], Answer]


def ours(options: Callable[[Problem], Mapping[str, Any]] | Mapping[str, Any]) -> Fit:
    """The package's ``fit`` with options, which may depend on the tensor."""

    def fit(task: Problem) -> Answer:
        chosen = options(task) if callable(options) else options
        likelihood = "probit" if task.binary else "gaussian"
        fitted = gptf_gpytorch.fit(task.train, likelihood=likelihood, seed=task.seed, **chosen).fitted

        def answer(indices: Tensor) -> Predicted:
            found = predict(fitted, indices)
            if found.probability is not None:
                return Predicted(found.probability.numpy(), probabilities=True)
            return Predicted(*(part.numpy() for part in (found.mean, found.std, found.lower, found.upper)))

        return answer

    return fit


def baseline(name: str, rank: int = 1, **options: Any) -> Fit:
    """A method of the tables; real values are standardised, which not all of them do themselves."""
    method = make(name, options)

    def fit(task: Problem) -> Answer:
        y = task.train.values
        centre, spread = (0.0, 1.0) if task.binary else (float(y.mean()), float(y.std()) or 1.0)
        scaled = task.train if task.binary else replace(task.train, values=(y - centre) / spread)
        fitted: Fitted = method.fit(Task(scaled, task.binary, rank, task.seed))
        return lambda indices: Predicted(
            centre + spread * fitted.predict(indices), probabilities=fitted.probabilities and task.binary
        )

    return fit


_POSTERIOR = {
    "method": "paper",
    "draws": 1,
    "optimizer": "adam",
    "learning_rate": 0.1,
    "inducing": 100,
    "validation": 0.0,
    "max_iterations": 1000,
}
_TOLD = {"occurrences": True, "warmup": 1.0}
_SMALL_PARTS = {"batch": 8192, "forget": 0.2, "warmup": 1.0, "learning_rate": 0.15}
#: The options of the tables at their largest rank. Labels of the panel have Enron's options, its values those of serology.
_POSTERIOR_ON: dict[str, dict[str, Any]] = {
    "alog": {"rank": 10, **_TOLD},
    "enron": {"rank": 10, **_TOLD, "max_iterations": 300},
    "serology": {"rank": 3},
    "il2": {"rank": 3},
    "acc": {"rank": 10, **_TOLD, "batch": 50_000},
    "dblp": {"rank": 10, **_SMALL_PARTS, "biases": True, "start_steps": 1500, "max_iterations": 800},
    "nell995": {"rank": 5, **_SMALL_PARTS, "start_steps": 1000, "max_iterations": 500},
    "avazu": {"rank": 3, "occurrences": True, "max_iterations": 300},
}


def posterior_options(task: Problem) -> dict[str, Any]:
    """Those of the posterior method, which the tables call ``ours-posterior``."""
    of_panel = {"rank": 5, **_TOLD, "max_iterations": 300} if task.binary else {"rank": 5}
    return _POSTERIOR | _POSTERIOR_ON.get(task.data, of_panel)


#: Each is called before the clock starts, so that loading a library is not timed.
ROWS: dict[str, Callable[[], Fit]] = {
    "default quick": partial(ours, {"effort": "quick"}),
    "default normal": partial(ours, {"effort": "normal"}),
    "default thorough": partial(ours, {"effort": "thorough"}),
    "sampler without g": partial(ours, {"effort": "normal", "process": False}),
    "sampler with g": partial(ours, {"effort": "normal", "process": True}),
    "posterior": partial(ours, posterior_options),
    "paper": partial(ours, {"method": "paper"}),
    "FM 8": partial(baseline, "fm", 8, samples=300, kept=200),
    "FM 16": partial(baseline, "fm", 16, samples=300, kept=200),
    "smurff 8": partial(baseline, "smurff", 8),
    "smurff 16": partial(baseline, "smurff", 16),
    "smurff 32": partial(baseline, "smurff", 32),
    "additive": partial(baseline, "additive"),
    "counts logistic": partial(baseline, "counts_logistic"),
    "CP-2": partial(baseline, "cp2", 8),
    "popularity": partial(baseline, "popularity"),
}
LABELS_ONLY = ("counts logistic",)


def measure(task: Problem, row: str) -> tuple[dict[str, Any], Cell]:
    """Fit a row: what goes into the JSON, and the predictions."""
    fit = ROWS[row]()
    for library in _LOADED_LATE:
        importlib.import_module(library)
    torch.manual_seed(task.seed)
    wall, processor = time.perf_counter(), time.process_time()
    answer = fit(task)
    seconds, cpu_seconds = time.perf_counter() - wall, time.process_time() - processor
    found, ids = answer(task.held_out.indices), _ids(task.held_out)
    y = task.held_out.values.double().numpy()
    if task.binary:
        many = None
        if task.many is not None:
            score = answer(task.many.indices).mean
            many = Labels(_ids(task.many), task.many.values.double().numpy(), score)
        cell = Cell(Labels(ids, y, found.mean, found.probabilities), many)
    else:
        cell = Cell(Values(ids, y, found.mean, found.std, found.lower, found.upper))
    about = {"data": task.data, "row": row, "seed": task.seed, "entries": len(task.train), "held_out": len(y)}
    return {**about, "seconds": seconds, "cpu_seconds": cpu_seconds, **cell.scores()}, cell


def _ids(entries: TensorEntries) -> Array:
    """A number for each cell, by which the bootstrap knows an entry that several seeds hold out."""
    return np.ravel_multi_index(tuple(entries.indices.numpy().T.astype(np.int64)), entries.shape)


def read(folder: Path) -> dict[str, Any]:
    """What the JSON in a folder holds."""
    path = folder / f"{NAME}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": []}
    return found


def keep(folder: Path, runs: list[dict[str, Any]], **parts: Any) -> None:
    """Add runs, in the place of earlier ones of the same tensor, row and seed, and other parts; one line a run.

    Several processes may do so at the same time.
    """
    store = Store(folder, NAME)
    with store.alone():
        before = read(folder)
        every = {_key(run): run for run in [*before.pop("runs"), *(_rounded(run) for run in runs)]}
        versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
        order = sorted(every, key=lambda key: (TENSORS.index(key[0]), list(ROWS).index(key[1]), key[2]))
        lines = ",\n".join(json.dumps(every[key]) for key in order)
        rest = {**before, **_rounded(parts), "versions": versions}
        draft = store.path.with_suffix(".json.new")
        draft.write_text(f'{json.dumps(rest, indent=1)[:-2]},\n "runs": [\n{lines}\n]}}\n')
        draft.replace(store.path)


def _key(run: Mapping[str, Any]) -> tuple[str, str, int]:
    return run["data"], run["row"], run["seed"]


def _rounded(value: Any) -> Any:
    """Numbers with six digits."""
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def cached(cache: Path, data: str, row: str, seed: int) -> Path:
    """The file of a cell's predictions."""
    return cache / data / f"{row.replace(' ', '_')}-{seed}.npz"


@click.group(help=__doc__)
def main() -> None:
    """Measure, or compare what was measured."""


_CACHE = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=pooch.os_cache("gptf_gpytorch") / NAME,
    help="Where predictions are kept; by default in the user's cache.",
)
_RESULTS = click.option(
    "--results",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    help="The folder of the JSON.",
)


@main.command()
@click.option("--data", multiple=True, type=click.Choice(TENSORS), default=TENSORS, help="Default: all.")
@click.option("--rows", multiple=True, type=click.Choice(list(ROWS)), default=list(ROWS), help="Default: all.")
@click.option("--seeds", help="As in 0,1,2, the default; the default of the four large tensors is 0.")
@click.option("--again", is_flag=True, help="Also what is in the JSON already.")
@_CACHE
@_RESULTS
def run(
    data: tuple[str, ...], rows: tuple[str, ...], seeds: str | None, again: bool, cache: Path, results: Path
) -> None:
    """Fit rows to tensors, print how they predict what is held out, and keep it."""
    for name in data:
        few = SEEDS[:1] if name in LARGE else SEEDS
        for seed in map(int, seeds.split(",")) if seeds else few:
            done = set() if again else {_key(run) for run in read(results)["runs"]}
            wanted = [row for row in rows if (name, row, seed) not in done]
            task = problem(name, seed) if wanted else None
            for row in wanted:
                if task is None or (row in LABELS_ONLY and not task.binary):
                    continue
                found, cell = measure(task, row)
                path = cached(cache, name, row, seed)
                path.parent.mkdir(parents=True, exist_ok=True)
                cell.save(path)
                keep(results, [found])
                shown = "  ".join(f"{key} {value:.4f}" for key, value in cell.scores().items() if value is not None)
                click.echo(f"{name:9} {seed}  {row:18} {shown}  {found['seconds']:.1f} s")


@main.command()
@click.option("--row", type=click.Choice(list(ROWS)), default="default normal", help="Which row is compared.")
@click.option("--replicates", type=int, default=500, show_default=True, help="Of the bootstrap.")
@_CACHE
@_RESULTS
def summary(row: str, replicates: int, cache: Path, results: Path) -> None:
    """Compare a row with all others, tensor by tensor, and say whether the targets hold."""
    runs, tensors = read(results)["runs"], {}
    for data in TENSORS:
        mine = [run for run in runs if run["data"] == data]
        cells: dict[str, dict[int, Cell]] = {}
        for run in mine:
            path = cached(cache, data, run["row"], run["seed"])
            if path.exists():
                cells.setdefault(run["row"], {})[run["seed"]] = Cell.load(path)
        if row in cells:
            tensors[data] = recipe_summary.compare(row, cells, mine, replicates)
            for metric, found in tensors[data]["comparisons"].items():
                click.echo(
                    f"{data:9} {metric:23} {found['ours']:9.4f}  {found['best']:18} {found['theirs']:9.4f}  "
                    f"{found['difference']:+.4f} ± {found['error']:.4f}"
                )
    targets = recipe_summary.targets(tensors)
    for target, found in targets.items():
        verdict = {True: "holds", False: "FAILS", None: "open"}[found["holds"]]
        click.echo(f"{verdict}: {target}: {found['count']} of {found['of']}")
    keep(results, [], summary={"row": row, "replicates": replicates, "tensors": tensors, "targets": targets})


if __name__ == "__main__":
    main()
