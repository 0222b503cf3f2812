"""How a run without flags does on tensors nobody tuned it for, beside the training mean, CP and a factorization machine.

Seven ways in which values come about, each with its values as real numbers and as labels (above their median), and each from
several seeds; of every tensor 1,600 to 5,000 cells are known, of which a fifth is tested on.

python experiments/studies/defaults.py [--seeds 3] [--first 300]
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from uncollapsed import write

sys.path.insert(0, str(Path(__file__).parents[1]))
from baselines.base import Array, Task
from methods import make
from scores import score

from gptf_gpytorch import TensorEntries
from gptf_gpytorch.data import holdout

#: Rows of the tables are the factors of each cell's entities: a list over the modes of `[n, rank]`.
Function = Callable[[list[Array], np.random.Generator], Array]


def _waves(factors: list[Array], generator: np.random.Generator) -> Array:
    x = np.concatenate(factors, axis=1)
    directions = generator.normal(size=(x.shape[1], 6)) * 2.0 / np.sqrt(x.shape[1])
    found: Array = np.sin(x @ directions) @ generator.normal(size=6)
    return found


def _products(factors: list[Array], generator: np.random.Generator) -> Array:
    found: Array = np.prod(factors, axis=0).sum(axis=1)
    return found


def _sums(factors: list[Array], generator: np.random.Generator) -> Array:
    return sum(table.sum(axis=1) for table in factors)  # type: ignore[return-value]


#: Shape, known cells, rank of what is hidden, noise in standard deviations of the values, and the function.
FAMILIES: dict[str, tuple[tuple[int, ...], int, int, float, Function]] = {
    "sums": ((30, 20, 10), 1_600, 1, 0.5, _sums),
    "products": ((25, 20, 12), 1_700, 1, 0.1, _products),
    "sums of 2 products": ((25, 20, 12), 1_700, 2, 0.1, _products),
    "sums of 3 products": ((40, 30, 20), 5_000, 3, 0.1, _products),
    "noisy products": ((30, 30, 10), 2_500, 1, 1.0, _products),
    "matrix": ((200, 100), 5_000, 2, 0.3, _products),
    "waves": ((50, 40, 30), 2_500, 2, 0.1, _waves),
}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("mean", {}),
    "cp2": ("cp2", {}),
    "fm": ("fm", {}),
    "ours": ("ours", {}),
    "ours, 100 inducing points": ("ours", {"inducing": 100}),
    "ours, 100 inducing points, patience 10": ("ours", {"inducing": 100, "patience": 10}),
}


def problem(family: str, seed: int, *, binary: bool) -> tuple[TensorEntries, TensorEntries]:
    """Entries to train on, and to test on."""
    shape, count, rank, noise, function = FAMILIES[family]
    generator = np.random.default_rng([seed, *family.encode()])
    cells = generator.choice(int(np.prod(shape)), size=count, replace=False)
    indices = np.stack(np.unravel_index(cells, shape), axis=1)
    factors = [generator.normal(size=(size, rank))[indices[:, mode]] for mode, size in enumerate(shape)]
    values = function(factors, generator)
    values = values + noise * values.std() * generator.normal(size=count)
    values = (values > np.median(values)).astype(np.float64) if binary else values
    found = holdout(TensorEntries(torch.from_numpy(indices), torch.from_numpy(values), shape), 0.2, seed=seed)
    return found.train, found.tests[0]


def run(family: str, seed: int, *, binary: bool) -> dict[str, float]:
    """The RMSE of each method as a share of the values' standard deviation; for labels, its AUC."""
    train, test = problem(family, seed, binary=binary)
    y, found = test.values.numpy(), {}
    for label, (name, options) in METHODS.items():
        if binary and name == "mean":
            continue
        fitted = make(name, options).fit(Task(train, binary, rank=3, seed=0))
        scores = score(y, fitted.predict(test.indices), binary=binary, probabilities=False)
        found[label] = scores["auc"] if binary else scores["rmse"] / float(y.std())
    return found


@click.command()
@click.option("--seeds", type=int, default=3, show_default=True)
@click.option("--first", type=int, default=300, show_default=True, help="The first seed.")
def main(seeds: int, first: int) -> None:
    """Measure all families, print them and keep them as JSON."""
    cells = []
    for binary in (False, True):
        for family in FAMILIES:
            for seed in range(first, first + seeds):
                found = run(family, seed, binary=binary)
                cells.append({"family": family, "binary": binary, "seed": seed, "scores": found})
                print(f"{family}, seed {seed}: " + ", ".join(f"{label} {value:.3f}" for label, value in found.items()))
    write("defaults", {"rank": 3, "cells": cells})


if __name__ == "__main__":
    main()
