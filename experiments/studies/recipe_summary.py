r"""Comparisons of rows of the study in ``recipe.py`` by their predictions of held-out entries.

The error of a difference is that of a paired bootstrap: entries are drawn with replacement from all that any seed holds out, both
rows are scored on the same ones, seed by seed, and the differences are averaged over seeds. An entry that two seeds hold out is
drawn for both of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
#: A metric of fixed predictions, as a function of the entries' weights `[n]`.
Weighted = Callable[[Array], float]

LARGER_IS_BETTER = {"auc", "average_precision", "average_precision_many", "log_density"}
MAIN = {True: "auc", False: "rmse"}
LIKELIHOOD = {True: "log_loss", False: "log_density"}


def auc(y: Array, score: Array) -> Weighted:
    """The area under the ROC curve; equal scores count half."""
    places = np.unique(score, return_inverse=True)[1]

    def of(weights: Array) -> float:
        ones, zeros = np.bincount(places, weights * y), np.bincount(places, weights * (1.0 - y))
        pairs = ones.sum() * zeros.sum()
        return float(ones @ (np.cumsum(zeros) - 0.5 * zeros) / pairs) if pairs else float("nan")

    return of


def average_precision(y: Array, score: Array) -> Weighted:
    """The mean over ones of the precision at their score."""
    places = np.unique(-score, return_inverse=True)[1]

    def of(weights: Array) -> float:
        ones, every = np.bincount(places, weights * y), np.bincount(places, weights)
        above, all_above = np.cumsum(ones), np.cumsum(every)
        precision = np.divide(above, all_above, out=np.zeros_like(above), where=all_above > 0)
        return float(ones @ precision / above[-1]) if above[-1] else float("nan")

    return of


def average(each: Array) -> Weighted:
    """The mean of what each entry has."""
    return lambda weights: float(weights @ each / weights.sum())


def rmse(y: Array, mean: Array) -> Weighted:
    """The root of the mean squared error."""
    squares = average((y - mean) ** 2)
    return lambda weights: float(np.sqrt(squares(weights)))


@dataclass(frozen=True)
class Labels:
    """Scores of labels, each an array `[n]`.

    :param ids: of the cells.
    :param probabilities: whether the scores are such.
    """

    ids: Array
    y: Array
    score: Array
    probabilities: bool = False

    def metrics(self) -> dict[str, Weighted | None]:
        """By name; None where the row does not say enough."""
        p = np.where(self.y == 1, self.score, 1.0 - self.score)
        loss = average(-np.log(np.clip(p, np.finfo(float).eps, 1.0))) if self.probabilities else None
        return {
            "auc": auc(self.y, self.score),
            "average_precision": average_precision(self.y, self.score),
            "log_loss": loss,
        }


@dataclass(frozen=True)
class Values:
    """Predictions of real values, each an array `[n]`.

    :param ids: of the cells.
    :param std: of an observation; its log density is taken to be normal.
    :param lower: of the 95% interval.
    """

    ids: Array
    y: Array
    mean: Array
    std: Array | None = None
    lower: Array | None = None
    upper: Array | None = None

    def metrics(self) -> dict[str, Weighted | None]:
        """By name; None where the row does not say enough."""
        density = coverage = None
        if self.std is not None:
            z = (self.y - self.mean) / self.std
            density = average(-0.5 * (z**2 + np.log(2.0 * np.pi)) - np.log(self.std))
        if self.lower is not None and self.upper is not None:
            coverage = average(((self.lower <= self.y) & (self.y <= self.upper)).astype(float))
        return {"rmse": rmse(self.y, self.mean), "log_density": density, "coverage": coverage}


@dataclass(frozen=True)
class Cell:
    """Predictions of one row for one seed of a tensor.

    :param many: the held-out ones among many sampled zeros.
    """

    held_out: Labels | Values
    many: Labels | None = None

    def metrics(self) -> dict[str, tuple[Array, Weighted] | None]:
        """By name: the ids of the entries it is about, and the metric."""
        ids = self.held_out.ids
        found = {name: None if of is None else (ids, of) for name, of in self.held_out.metrics().items()}
        if self.many is not None:
            found["average_precision_many"] = (self.many.ids, average_precision(self.many.y, self.many.score))
        return found

    def scores(self) -> dict[str, float | None]:
        """By name, every entry counted once."""
        return {name: None if of is None else of[1](np.ones(len(of[0]))) for name, of in self.metrics().items()}

    def save(self, path: Path) -> None:
        """To a compressed file of arrays."""
        parts = {"held_out": self.held_out} | ({} if self.many is None else {"many": self.many})
        arrays = {
            f"{part}.{item.name}": value
            for part, found in parts.items()
            for item in fields(found)
            if (value := getattr(found, item.name)) is not None
        }
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Cell":
        """What :meth:`save` wrote."""
        parts: dict[str, dict[str, Any]] = {}
        with np.load(path) as arrays:
            for name in arrays.files:
                part, _, item = name.partition(".")
                parts.setdefault(part, {})[item] = arrays[name] if arrays[name].ndim else arrays[name].item()
        kind = Labels if "score" in parts["held_out"] else Values
        return cls(kind(**parts["held_out"]), Labels(**parts["many"]) if "many" in parts else None)


def paired_error(
    ours: Sequence[tuple[Array, Weighted]], theirs: Sequence[Weighted], replicates: int = 500, seed: int = 0
) -> float:
    """The standard error of the difference of two rows' metric, averaged over seeds.

    :param ours: for each seed the ids of the entries and the metric of one row.
    :param theirs: that of the other row, on the same entries.
    """
    every = np.unique(np.concatenate([ids for ids, _ in ours]))
    places = [np.searchsorted(every, ids) for ids, _ in ours]
    generator = np.random.default_rng(seed)
    differences = []
    for _ in range(replicates):
        counts = np.bincount(generator.integers(len(every), size=len(every)), minlength=len(every)).astype(float)
        pairs = zip(places, ours, theirs, strict=True)
        differences.append(np.mean([mine(counts[at]) - other(counts[at]) for at, (_, mine), other in pairs]))
    return float(np.nanstd(differences, ddof=1))


def compare(
    row: str, cells: Mapping[str, Mapping[int, Cell]], runs: Sequence[Mapping[str, Any]], replicates: int = 500
) -> dict[str, Any]:
    """A row beside all others on one tensor. A difference is positive where the row is better.

    Rows whose names begin with "default" are the same method with another effort: they are not among the others. Nor are rows
    that lack a seed of this one, or predicted other entries, which are named as missing.

    :param cells: predictions by row and seed.
    :param runs: the tensor's runs in the JSON, for their seconds.
    """
    seeds = sorted(cells[row])
    others = [name for name in cells if not name.startswith("default") and name != row]
    comparable = [name for name in others if _same_entries(cells[row], cells[name])]
    by_metric: dict[str, dict[str, list[tuple[Array, Weighted]]]] = {}
    for name in [row, *comparable]:
        for seed in seeds:
            for metric, of in cells[name][seed].metrics().items():
                if of is not None:
                    by_metric.setdefault(metric, {}).setdefault(name, []).append(of)
    binary = "auc" in by_metric
    coverage = by_metric.pop("coverage", {}).get(row)
    comparisons = {}
    for metric, found in by_metric.items():
        theirs = {name: _mean(of) for name, of in found.items() if name != row}
        if row in found and theirs:
            best = (max if metric in LARGER_IS_BETTER else min)(theirs, key=theirs.__getitem__)
            difference, error = _difference(metric, found[row], found[best], replicates)
            values = {"ours": _mean(found[row]), "theirs": theirs[best]}
            comparisons[metric] = {"best": best, **values, "difference": difference, "error": error}
    main = MAIN[binary]
    seconds: dict[str, list[float]] = {}
    for run in runs:
        seconds.setdefault(run["row"], []).append(run["seconds"])
    return {
        "binary": binary,
        "entries": max(run["entries"] for run in runs),
        "seeds": seeds,
        "comparisons": comparisons,
        "differences": {
            name: _difference(main, by_metric[main][row], by_metric[main][name], replicates) for name in comparable
        },
        "coverage": None if coverage is None else _mean(coverage),
        "seconds": {name: float(np.mean(found)) for name, found in seconds.items()},
        "missing": [name for name in others if name not in comparable],
    }


def _same_entries(ours: Mapping[int, Cell], theirs: Mapping[int, Cell]) -> bool:
    """Whether the other row predicted the entries of this one, for all of its seeds."""

    def ids(cell: Cell) -> Array:
        return np.concatenate([part.ids for part in (cell.held_out, cell.many) if part is not None])

    return all(seed in theirs and np.array_equal(ids(cell), ids(theirs[seed])) for seed, cell in ours.items())


def _difference(
    metric: str, ours: Sequence[tuple[Array, Weighted]], theirs: Sequence[tuple[Array, Weighted]], replicates: int
) -> tuple[float, float]:
    """How much better ours is, and the error of that."""
    sign = 1.0 if metric in LARGER_IS_BETTER else -1.0
    return sign * (_mean(ours) - _mean(theirs)), paired_error(ours, [of for _, of in theirs], replicates)


def _mean(found: Sequence[tuple[Array, Weighted]]) -> float:
    """A metric, averaged over seeds."""
    return float(np.mean([of(np.ones(len(ids))) for ids, of in found]))


def targets(tensors: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Which of the numbers to reach are reached, on how many of the tensors, and where not.

    :param tensors: what :func:`compare` said of each.
    """
    main = {data: found["comparisons"].get(MAIN[found["binary"]]) for data, found in tensors.items()}
    main = {data: found for data, found in main.items() if found is not None}
    precision = {data: _precision(found["comparisons"]) for data, found in tensors.items() if found["binary"]}
    likelihood = {data: found["comparisons"].get(LIKELIHOOD[found["binary"]]) for data, found in tensors.items()}
    additive = {data: found["differences"].get("additive") for data, found in tensors.items()}
    coverage = {data: found["coverage"] for data, found in tensors.items() if not found["binary"]}
    margin = {data: 0.01 if tensors[data]["binary"] else 0.03 * found["theirs"] for data, found in main.items()}
    found = {
        "AUC or RMSE as good as the best, within an error": _target(0.75, main, _as_good),
        "never behind by more than .01 AUC or 3% RMSE": _target(
            1.0, {data: (one, margin[data]) for data, one in main.items()}, lambda of: of[0]["difference"] >= -of[1]
        ),
        "never behind by more than two errors": _target(1.0, main, lambda of: of["difference"] >= -2.0 * of["error"]),
        "better by more than two errors": _target(0.5, main, lambda of: of["difference"] > 2.0 * of["error"]),
        "never behind additive biases": _target(1.0, additive, lambda of: of[0] >= 0.0),
        "average precision as good as the best, within an error": _target(2 / 3, precision, _as_good),
        "log loss or log density as good as the best, within an error": _target(0.75, likelihood, _as_good),
        "95% intervals hold 92 to 98%": _target(1.0, coverage, lambda share: 0.92 <= share <= 0.98),
    }
    for effort, most in (("quick", 5.0), ("normal", 30.0)):
        small = {
            data: one["seconds"].get(f"default {effort}") for data, one in tensors.items() if one["entries"] <= 20_000
        }
        found[f"{effort} within {most:g} s up to 20,000 entries"] = _target(1.0, small, lambda s, most=most: s <= most)
    for data, most in (("dblp", 180.0), ("acc", 300.0)):
        seconds = {data: tensors[data]["seconds"].get("default normal")} if data in tensors else {}
        found[f"normal within {most:g} s on {data}"] = _target(1.0, seconds, lambda s, most=most: s <= most)
    return found


def _precision(comparisons: Mapping[str, Any]) -> Any:
    """Average precision among many cells, as the tests have it, or of the held-out entries alone."""
    return comparisons.get("average_precision_many") or comparisons.get("average_precision")


def _as_good(comparison: Mapping[str, float]) -> bool:
    return comparison["difference"] >= -comparison["error"]


def _target(share: float, tensors: Mapping[str, Any], reached: Callable[[Any], bool]) -> dict[str, Any]:
    """How many tensors reach a target, of those that can be judged; it holds, or not, where there are any."""
    judged = {data: reached(found) for data, found in tensors.items() if found is not None}
    count = sum(judged.values())
    return {
        "holds": count >= share * len(judged) if judged else None,
        "count": count,
        "of": len(judged),
        "needed": share,
        "not": [data for data, one in judged.items() if not one],
    }
