"""Factors as point estimates or with a posterior, and what helps it, on entries held out of training sets; not on tests.

A fifth of the training entries of a fold is predicted by fits to the rest: by point estimates, whose steps are chosen on a tenth
of that rest; by a posterior with fixed draws and L-BFGS, with the same stop; and by a posterior that Adam draws anew in every
step, fitted to all of it, without and with biases of entities, how often these occur, a warm-up of the divergence from the prior,
and five starts whose predictions are averaged. What is in the JSON already is not done again.

python experiments/studies/factor_posterior.py [--data enron] [--ranks 3,8] [--folds 1,2,3,4,5] [--repeats 3] [--batch 40000]
"""

import json
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import click
from uncollapsed import RESULTS, write

sys.path.insert(0, str(Path(__file__).parents[1]))
import datasets
from baselines.tools import hold_out, score
from methods import make

NAME = "factor_posterior"
_ANEW = {"draws": 1, "optimizer": "adam", "learning_rate": 0.1, "validation": 0.0}
WAYS: dict[str, dict[str, Any]] = {
    "point": {},
    "fixed draws": {"draws": 2},
    "new draws": _ANEW,
    "biases": {**_ANEW, "biases": True},
    "occurrences": {**_ANEW, "occurrences": True},
    "warm-up": {**_ANEW, "warmup": 1.0},
    "occurrences, warm-up": {**_ANEW, "occurrences": True, "warmup": 1.0},
    "five starts": {**_ANEW, "ensemble": 5},
}
DATA = ("enron", "il2", "synthetic", "synthetic-binary", "serology", "alog", "avazu", "dblp", "nell995", "acc")


def run(
    data: str, fold: int, rank: int, way: str, repeat: int = 0, *, iterations: int, inducing: int, batch: int = 0
) -> dict[str, Any]:
    """How well a way predicts a fifth of a training set: AUC or minus RMSE.

    :param repeat: another number holds out another fifth, and starts elsewhere.
    """
    seed = fold + 100 * repeat
    task, held_out = hold_out(datasets.load(data, fold).task(rank, seed), 0.2)
    where = {"data": data, "fold": fold, "rank": rank, "way": way, "repeat": repeat}
    about = {"max_iterations": iterations, "inducing": inducing, "batch": batch if "optimizer" in WAYS[way] else 0}
    method, began = make("ours", {**about, **WAYS[way]}), time.perf_counter()
    fitted = method.fit(task)
    seconds = time.perf_counter() - began
    found = score(held_out, fitted.predict(held_out.indices), task.binary)
    return {
        **where,
        "iterations": iterations,
        "inducing": inducing,
        "batch": batch,
        "score": found,
        "steps": fitted.details["steps"],
        "seconds": seconds,
    }


@click.command(help=__doc__)
@click.option("--data", multiple=True, default=DATA, show_default=True)
@click.option("--ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS))
@click.option("--ranks", default="3,8", show_default=True)
@click.option("--folds", default="1,2,3,4,5", show_default=True)
@click.option("--repeats", default=1, show_default=True, help="fifths of a fold that are held out, one after the other")
@click.option("--iterations", default=200, show_default=True, help="steps at most")
@click.option("--inducing", default=100, show_default=True)
@click.option("--batch", default=0, show_default=True, help="entries of a step that draws anew; 0 for all")
def main(data: list[str], ways: list[str], ranks: str, folds: str, repeats: int, **options: int) -> None:
    """Fit every way to every fold, print how it predicts, keep the JSON."""
    path = RESULTS / f"{NAME}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    finished = [(done["data"], done["fold"], done["rank"], done["way"], done["repeat"]) for done in runs]
    wanted = product(data, map(int, folds.split(",")), map(int, ranks.split(",")), ways, range(repeats))
    for name, fold, rank, way, repeat in wanted:
        if (name, fold, rank, way, repeat) in finished:
            continue
        found = run(name, fold, rank, way, repeat, **options)
        click.echo(
            f"{name} rank {rank} fold {fold}  {way:22} score {found['score']:.4f}  "
            f"{found['steps']} steps, {found['seconds']:.1f} s"
        )
        runs.append(found)
        write(NAME, {"runs": runs})


if __name__ == "__main__":
    main()
