"""Steps on all entries, on parts, and on small parts with a q(v) that remembers, and what entities bring to them; not on tests.

A tenth of a training set is predicted by fits to the rest. Ways that do not remember, and the first that does, have as many steps
as take about half a minute of one core on DBLP at rank 3. Seconds are the process's own, whatever else the machine does. What is
in the JSON already is not done again.

python experiments/studies/small_parts.py [--data nell995] [--ranks 5] [--ways longer] [--told occurrences]
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

NAME = "small_parts"
_ANEW = {"draws": 1, "optimizer": "adam", "inducing": 100, "validation": 0.0, "learning_rate": 0.15}
_REMEMBERING = {"batch": 8192, "forget": 0.2}
_WARM = {**_REMEMBERING, "warmup": 1.0}
_LARGER = {"batch": 16_384, "learning_rate": 0.1}
WAYS: dict[str, dict[str, Any]] = {
    "all entries": {"max_iterations": 18},
    "parts of 40,000": {"batch": 40_000, "max_iterations": 90},
    "parts of 8,192": {"batch": 8192, "max_iterations": 350},
    "remembering": {**_REMEMBERING, "max_iterations": 800},
    "quick steps first": {**_REMEMBERING, "start_steps": 450, "max_iterations": 500},
    "quick steps alone": {**_WARM, "start_steps": 220, "max_iterations": 0},
    "larger quick steps alone": {**_WARM, **_LARGER, "start_steps": 120, "max_iterations": 0},
    "the same, 50 inducing points": {**_WARM, **_LARGER, "inducing": 50, "start_steps": 210, "max_iterations": 0},
    "the same, 30 inducing points": {**_WARM, **_LARGER, "inducing": 30, "start_steps": 55, "max_iterations": 0},
    "short": {**_WARM, "start_steps": 450, "max_iterations": 200},
    "longer": {**_WARM, "start_steps": 1000, "max_iterations": 500},
    "longest": {**_WARM, "start_steps": 1500, "max_iterations": 800},
}
TOLD: dict[str, dict[str, bool]] = {
    "biases": {"biases": True},
    "occurrences": {"occurrences": True},
    "both": {"biases": True, "occurrences": True},
    "neither": {},
}


def run(data: str, rank: int, way: str, told: str) -> dict[str, Any]:
    """How well a way predicts what is held out, AUC or minus RMSE, and what it took."""
    kept, held_out = hold_out(datasets.load(data, 1).task(rank, 0))
    method, began = make("ours", {**_ANEW, **WAYS[way], **TOLD[told]}), time.process_time()
    fitted = method.fit(kept)
    seconds = time.process_time() - began
    found = score(held_out, fitted.predict(held_out.indices), kept.binary)
    where = {"data": data, "rank": rank, "way": way, "told": told, **WAYS[way]}
    return {**where, "score": found, "bound": fitted.details["bound"], "seconds": seconds}


@click.command(help=__doc__)
@click.option("--data", default="dblp", show_default=True)
@click.option("--ranks", default="3", show_default=True)
@click.option("--ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS))
@click.option("--told", multiple=True, type=click.Choice(list(TOLD)), default=["biases"], show_default=True)
def main(data: str, ranks: str, ways: list[str], told: list[str]) -> None:
    """Fit every way at every rank, print how it predicts, keep the JSON."""
    path = RESULTS / f"{NAME}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    finished = [(done["data"], done["rank"], done["way"], done["told"]) for done in runs]
    for rank, way, what in product(map(int, ranks.split(",")), ways, told):
        if (data, rank, way, what) not in finished:
            runs.append(run(data, rank, way, what))
            click.echo(f"{data} {rank}  {way:20} {what:12} {runs[-1]['score']:.4f}  {runs[-1]['seconds']:.1f} s")
            write(NAME, {"runs": runs})


if __name__ == "__main__":
    main()
