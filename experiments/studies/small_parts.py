"""Steps on all entries, on parts, and on small parts with a q(v) that remembers, in about the same time; not on tests.

A tenth of DBLP's training entries is predicted by fits of rank 3 to the rest, with as many steps as take about half a minute
of one core. Seconds are the process's own, whatever else the machine does.

python experiments/studies/small_parts.py [--rank 3]
"""

import sys
import time
from pathlib import Path
from typing import Any

import click
from uncollapsed import write

sys.path.insert(0, str(Path(__file__).parents[1]))
import datasets
from baselines.base import Task
from baselines.tools import hold_out, score
from methods import make

from gptf_gpytorch import TensorEntries

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
}


def run(kept: Task, held_out: TensorEntries, way: str) -> dict[str, Any]:
    """How well a way predicts what is held out, AUC or minus RMSE, and what it took."""
    method, began = make("ours", {**_ANEW, **WAYS[way]}), time.process_time()
    fitted = method.fit(kept)
    seconds = time.process_time() - began
    found = score(held_out, fitted.predict(held_out.indices), kept.binary)
    return {"way": way, **WAYS[way], "score": found, "bound": fitted.details["bound"], "seconds": seconds}


@click.command(help=__doc__)
@click.option("--data", default="dblp", show_default=True)
@click.option("--rank", default=3, show_default=True)
def main(data: str, rank: int) -> None:
    """Fit every way, print how it predicts, keep the JSON."""
    kept, held_out = hold_out(datasets.load(data, 1).task(rank, 0))
    runs = []
    for way in WAYS:
        runs.append(run(kept, held_out, way))
        click.echo(f"{way:30} score {runs[-1]['score']:.4f}  {runs[-1]['seconds']:.1f} s")
    write(NAME, {"data": data, "rank": rank, "runs": runs})


if __name__ == "__main__":
    main()
