"""Steps on all entries, on parts, and on small parts with a q(v) that remembers, in about the same time; not on tests.

A tenth of DBLP's training entries is predicted by fits to the rest: the first ways with as many steps as take about half a minute
of one core at rank 3, the last three about as long as the table's. Seconds are the process's own, whatever else the machine does.
What is in the JSON already is not done again.

python experiments/studies/small_parts.py [--ranks 3] [--ways "all entries"]
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
_ANEW = {"draws": 1, "biases": True, "optimizer": "adam", "inducing": 100, "validation": 0.0, "learning_rate": 0.15}
_REMEMBERING = {"batch": 8192, "forget": 0.1}
WAYS: dict[str, dict[str, Any]] = {
    "all entries": {"max_iterations": 18},
    "parts of 40,000": {"batch": 40_000, "max_iterations": 90},
    "parts of 8,192": {"batch": 8192, "max_iterations": 350},
    "remembering": {**_REMEMBERING, "max_iterations": 600},
    "quick steps, then remembering": {**_REMEMBERING, "start_steps": 300, "max_iterations": 450},
    "the same without biases": {**_REMEMBERING, "start_steps": 300, "max_iterations": 450, "biases": False},
    "more of both": {**_REMEMBERING, "start_steps": 800, "max_iterations": 1000},
    "more of both, warm-up": {**_REMEMBERING, "start_steps": 800, "max_iterations": 1000, "warmup": 1.0},
    "many more quick ones, warm-up": {**_REMEMBERING, "start_steps": 2500, "max_iterations": 1000, "warmup": 1.0},
}


def run(rank: int, way: str) -> dict[str, Any]:
    """How well a way predicts what is held out, AUC or minus RMSE, and what it took."""
    kept, held_out = hold_out(datasets.load("dblp", 1).task(rank, 0))
    method, began = make("ours", {**_ANEW, **WAYS[way]}), time.process_time()
    fitted = method.fit(kept)
    seconds = time.process_time() - began
    found = score(held_out, fitted.predict(held_out.indices), kept.binary)
    where = {"rank": rank, "way": way, **WAYS[way]}
    return {**where, "score": found, "bound": fitted.details["bound"], "seconds": seconds}


@click.command(help=__doc__)
@click.option("--ranks", default="3", show_default=True)
@click.option("--ways", multiple=True, type=click.Choice(list(WAYS)), default=list(WAYS))
def main(ranks: str, ways: list[str]) -> None:
    """Fit every way at every rank, print how it predicts, keep the JSON."""
    path = RESULTS / f"{NAME}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    finished = [(done["rank"], done["way"]) for done in runs]
    for rank, way in product(map(int, ranks.split(",")), ways):
        if (rank, way) not in finished:
            runs.append(run(rank, way))
            click.echo(f"rank {rank}  {way:30} score {runs[-1]['score']:.4f}  {runs[-1]['seconds']:.1f} s")
            write(NAME, {"data": "dblp", "runs": runs})


if __name__ == "__main__":
    main()
