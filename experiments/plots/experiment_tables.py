"""The tables of experiments/README.md, from the finished fits and from what others have published."""

import json
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
sys.path.append(str(HERE))  # the modules of run.py

from plan import Plan  # noqa: E402
from scores import Row, rows  # noqa: E402
from store import Store  # noqa: E402

RESULTS = HERE / "results"
NOTHING = "not run yet"


def published() -> list[dict[str, Any]]:
    """The paper's figures, and the numbers that were published since."""
    figures: list[dict[str, Any]] = tomllib.loads((HERE / "published.toml").read_text(encoding="utf-8"))["figure"]
    return figures


def number(value: float) -> str:
    """Three digits, without the 0 before the point."""
    return f"{value:.3f}".removeprefix("0")


def best_since(figure: dict[str, Any]) -> list[float]:
    """The best published value at each rank, among those that are about the same values."""
    known = [one["values"] for one in figure.get("since", {}).values() if one.get("comparable", True)]
    pick = min if figure["metric"] == "rmse" else max
    return [pick(values) for values in zip(*known, strict=True)]


def overview(results: Path = RESULTS) -> str:
    """One line for each figure of the paper."""
    lines = ["| paper figure | command | minutes | paper said | published since, best | ours |", "|---" * 6 + "|"]
    for figure in published():
        plan = Plan.read(figure["table"]).only(data=[figure["data"]])
        cells = Store(results, figure["table"]).cells
        seconds = [cells[cell.key]["seconds"] for cell in plan.cells if cell.key in cells]
        minutes = f"{sum(seconds) / 60:.0f}" if seconds else NOTHING
        if 0 < len(seconds) < len(plan.cells):
            minutes += f", {len(seconds)} of {len(plan.cells)} fits"
        since = " / ".join(map(number, best_since(figure)))
        command = f"`python experiments/run.py {figure['table']} --data {figure['data']}`"
        ours = _seconds(plan, cells) if figure["table"] == "scalability" else _ours(plan, cells)
        lines.append(f"| {figure['name']} | {command} | {minutes} | {figure['paper']} | {since} | {ours or NOTHING} |")
    return "\n".join(lines)


def _ours(plan: Plan, cells: dict[str, Any]) -> str:
    return " / ".join(number(row.mean) for row in rows(plan, cells) if row.label == plan.ours)


def _seconds(plan: Plan, cells: dict[str, Any]) -> str:
    """Seconds a step by the number of workers."""
    found = {
        cell.options["workers"]: cells[cell.key]["details"]["seconds_per_step"]
        for cell in plan.cells
        if "workers=" in cell.label and cell.key in cells
    }
    shown = [f"{workers} worker{'s' * (workers > 1)} {seconds:.2f} s" for workers, seconds in found.items()]
    return ", ".join(shown) + (f", {found[1] / found[2]:.2f} times as fast" if {1, 2} <= set(found) else "")


def table(name: str, results: Path = RESULTS) -> str:
    """Every method of a table at every rank: mean ± standard error; with p < .05, * where ours is better, † where it is worse."""
    plan = Plan.read(name)
    found = rows(plan, Store(results, name).cells)
    parts = []
    for data in dict.fromkeys(row.data for row in found):
        mine = [row for row in found if row.data == data]
        ranks = sorted({row.rank for row in mine if row.rank is not None})
        lines = [f"| {data}, {mine[0].metric} | {' | '.join(f'rank {rank}' for rank in ranks)} | s a fit |"]
        lines.append("|---" * (len(ranks) + 2) + "|")
        for label in dict.fromkeys(row.label for row in mine):
            at = {row.rank: row for row in mine if row.label == label}
            shown = [_entry(at.get(rank, at.get(None))) for rank in ranks]
            seconds = max(row.seconds for row in at.values())
            lines.append(f"| {label} | {' | '.join(shown)} | {seconds:.3g} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) or NOTHING


def _entry(row: Row | None) -> str:
    if row is None:
        return ""
    error = "" if row.error is None else f" ± {number(row.error)}"
    mark = "" if row.p is None or row.p >= 0.05 else "†" if row.better else "*"
    return f"{number(row.mean)}{error}{mark}"


def calibration(results: Path = RESULTS) -> str:
    """How far probabilities of clicks are from frequencies."""
    plan = Plan.read("ctr")
    cells = Store(results, "ctr").cells
    names = ("auc", "average_precision", "log_loss", "ece")
    found: dict[str, dict[str, Row]] = {}
    for name in names:
        for row in rows(plan, cells, name):
            found.setdefault(row.label, {})[name] = row
    if not found:
        return NOTHING
    lines = [f"| {' | '.join(['method', *names])} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {label} | {' | '.join(_entry(of.get(name)) for name in names)} |" for label, of in found.items()]
    return "\n".join(lines)


def points_in_time(found: Sequence[Row]) -> list[tuple[str, int]]:
    """The data sets and ranks of accuracy against time; ours, which has no rank, is shown at each."""
    return list(dict.fromkeys((r.data, r.rank) for r in found if r.label.startswith("time-") and r.rank is not None))


def equal_time(results: Path = RESULTS) -> str:
    """SVGP-Adam at its best on every data set, what ours has reached by then, when it was as good, and where it is too late."""
    plan = Plan.read("scalability")
    found = rows(plan, Store(results, "scalability").cells)
    names = (
        "data, rank",
        "SVGP-Adam at its best",
        "ours in no more time",
        "ours as good after",
        "ours as good at its points",
    )
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for data, rank in points_in_time(found):
        theirs, mine = (
            [row for row in found if row.data == data and row.rank in at and row.label.startswith(f"time-{name} ")]
            for name, at in (("svgp", (rank,)), ("ours", (None,)))
        )
        if not theirs or not mine:
            continue
        sign = -1.0 if theirs[0].metric == "rmse" else 1.0
        best = max(theirs, key=lambda row: (sign * row.mean, -row.seconds))
        within = [row for row in mine if row.seconds <= best.seconds]
        as_good = [row.seconds for row in mine if sign * row.mean >= sign * best.mean]
        reached = _reached(max(within, key=lambda row: sign * row.mean)) if within else "no fit is as short"
        after = f"{min(as_good):.3g} s, {min(as_good) / best.seconds:.2f} of its time" if as_good else "never"
        behind = [
            f"{point.seconds:.3g} s"
            for point in sorted(theirs, key=lambda row: row.seconds)
            if not any(row.seconds <= point.seconds and sign * row.mean >= sign * point.mean for row in mine)
        ]
        points = f"{len(theirs) - len(behind)} of {len(theirs)}{', not at ' if behind else ''}{', '.join(behind)}"
        lines.append(f"| {data}, {rank}: {best.metric} | {_reached(best)} | {reached} | {after} | {points} |")
    return "\n".join(lines) if len(lines) > 2 else NOTHING


def ablation(results: Path = RESULTS) -> str:
    """Of each way to treat factors, the mean score of held-out training entries, and how often others were held out."""
    path = results / "factor_posterior.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    if not runs:
        return NOTHING
    ways = list(dict.fromkeys(run["way"] for run in runs))
    lines = [f"| data, rank, steps at most, fifths held out | {' | '.join(ways)} |", "|---" * (len(ways) + 1) + "|"]
    for data, rank in dict.fromkeys((run["data"], run["rank"]) for run in runs):
        mine = [run for run in runs if (run["data"], run["rank"]) == (data, rank)]
        scores = {way: [abs(run["score"]) for run in mine if run["way"] == way] for way in ways}
        metric = "RMSE" if mine[0]["score"] < 0 else "AUC"
        shown = [number(sum(found) / len(found)) if found else "" for found in scores.values()]
        splits, steps = len({(run["fold"], run["repeat"]) for run in mine}), {run["iterations"] for run in mine}
        at_most = ", ".join(map(str, sorted(steps)))
        lines.append(f"| {data}, {rank}, {at_most}, {splits}: {metric} | {' | '.join(shown)} |")
    return "\n".join(lines)


def small_parts(results: Path = RESULTS) -> str:
    """Of each way to take steps, how well held-out training entries are predicted, and seconds."""
    path = results / "small_parts.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    if not runs:
        return NOTHING
    told = list(dict.fromkeys(run["told"] for run in runs))
    lines = [f"| data, rank | steps | how many | {' | '.join(told)} |", "|---" * (3 + len(told)) + "|"]
    for data, rank, way in dict.fromkeys((run["data"], run["rank"], run["way"]) for run in runs):
        mine = {run["told"]: run for run in runs if (run["data"], run["rank"], run["way"]) == (data, rank, way)}
        first = next(iter(mine.values()))
        steps = f"{first.get('start_steps', 0)} + {first['max_iterations']}"
        shown = [f"{number(abs(mine[t]['score']))} in {mine[t]['seconds']:.3g} s" if t in mine else "" for t in told]
        lines.append(f"| {data}, {rank} | {way} | {steps} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _reached(row: Row) -> str:
    return f"{number(row.mean)} in {row.seconds:.3g} s"


def _tables(names: Sequence[str]) -> dict[str, Any]:
    return {name: lambda name=name: table(name) for name in names}


TABLES = {
    "experiments": overview,
    **_tables(("small", "large")),
    "ctr": calibration,
    "scalability": equal_time,
    "ablation": ablation,
    "small_parts": small_parts,
}
