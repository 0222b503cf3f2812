"""Figures like the paper's, from the JSON of ``run.py`` alone.

python experiments/plots/experiments.py [--results experiments/results] [--figures experiments/results/figures]
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
from benchmarks import STYLE
from experiment_tables import RESULTS, Plan, Row, Store, best_since, points_in_time, published, rows
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter
from plan import Cell

PATH = click.Path(path_type=Path)
COLOURS = mpl.colormaps["tab20"].colors  # type: ignore[attr-defined]
OURS = COLOURS[6]
OTHERS = [colour for colour in COLOURS if colour != OURS]


@click.command(help=__doc__)
@click.option("--results", type=PATH, default=RESULTS)
@click.option("--figures", type=PATH, default=None, help="by default, a folder in the results")
def main(results: Path, figures: Path | None) -> None:
    """Draw the figure of every table that has been run."""
    figures = results / "figures" if figures is None else figures
    figures.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, Callable[[Plan, dict[str, Any]], Figure]] = {
        "small": ranks,
        "large": ranks,
        "ctr": bars,
        "scalability": scalability,
    }
    with mpl.rc_context(STYLE):
        for name, draw in drawn.items():
            cells, plan = Store(results, name).cells, Plan.read(name)
            if not any(cell.key in cells for cell in plan.cells):
                click.echo(
                    f"nothing of the table in {results / f'{name}.json'}: python experiments/run.py {name}", err=True
                )
                continue
            figure = draw(plan, cells)
            path = figures / f"table-{name}.png"
            figure.savefig(path, dpi=110, metadata={"Software": None})
            click.echo(f"wrote {path}")


def ranks(plan: Plan, cells: dict[str, Any]) -> Figure:
    """RMSE or AUC against the rank, a line for each method, with standard errors; the best published since is dashed."""
    found = rows(plan, cells)
    names = list(dict.fromkeys(row.data for row in found))
    labels = list(dict.fromkeys(row.label for row in found))
    figure = Figure(figsize=(max(5.4, 2.6 * len(names)), 3.8), layout="constrained")
    for axes, data in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        mine = [row for row in found if row.data == data]
        ticks = sorted({row.rank for row in mine if row.rank is not None})
        for label in labels:
            line = [row for row in mine if row.label == label]
            if line:
                _line(axes, line, OTHERS[labels.index(label) % len(OTHERS)], bold=label == plan.ours)
        for known in published():
            if known["data"] == data and known["table"] == plan.name and (best := best_since(known)):
                axes.plot([3, 5, 8, 10], best, "k--", linewidth=1.0, label="best published since")
        axes.set(title=data, xlabel="rank", ylabel=mine[0].metric.upper(), xticks=ticks)
        if mine[0].metric == "rmse":  # from ours to the training mean
            _plain_log(axes, axes.yaxis, (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))
    _legend(figure)
    return figure


def _plain_log(axes: Axes, axis: Axis, digits: Sequence[float] = (1.0, 2.0, 5.0)) -> None:
    """A logarithmic axis with a few numbers that can be read, those of these digits."""
    axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(LogLocator(subs=digits))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


def _line(axes: Axes, line: list[Row], colour: Any, *, bold: bool) -> None:
    style = {"color": OURS, "linewidth": 2.6, "zorder": 3} if bold else {"color": colour, "linewidth": 1.2}
    if line[0].rank is None:  # the same at all ranks
        axes.axhline(line[0].mean, linestyle="-" if bold else ":", label=line[0].label, **style)
        return
    at = [row.rank for row in line]
    errors = [row.error or 0.0 for row in line]
    axes.errorbar(at, [r.mean for r in line], errors, marker="o", capsize=2, label=line[0].label, **style)


def bars(plan: Plan, cells: dict[str, Any]) -> Figure:
    """AUC and calibration error of clicks."""
    panels = {"auc": "AUC", "ece": "calibration error"}
    figure = Figure(figsize=(7.6, 2.8), layout="constrained")
    for axes, (metric, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        found = rows(plan, cells, metric)
        for place, row in enumerate(found):
            colour = OURS if row.label.startswith("ours") else COLOURS[15]
            axes.barh(place, row.mean, xerr=row.error or 0.0, color=colour, capsize=2)
        axes.set_yticks(range(len(found)), [row.label for row in found])
        axes.invert_yaxis()
        axes.set(title=title)
        if metric == "auc":
            axes.set_xlim(left=0.5)
    return figure


def scalability(plan: Plan, cells: dict[str, Any]) -> Figure:
    """Speed against workers, cost against entries, and for every data set accuracy against time."""
    done = [(cell, cells[cell.key]) for cell in plan.cells if cell.key in cells]
    found = [row for row in rows(plan, cells) if row.label.startswith("time-")]
    names = points_in_time(found)
    columns = 4
    lines = -(-(2 + len(names)) // columns)
    panels = Figure(figsize=(2.8 * columns, 2.5 * lines), layout="constrained")
    speed, cost, *others = panels.subplots(lines, columns, squeeze=False).flat
    workers = [(c.options["workers"], 1.0 / r["details"]["seconds_per_step"]) for c, r in done if _is(c, "workers")]
    entries = [
        (c.options["entries"], c.options["entries"] / r["details"]["entries_per_second"])
        for c, r in done
        if _is(c, "entries")
    ]
    for axes, points in ((speed, workers), (cost, entries)):
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", color=OURS)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    speed.set(title="acc: iterations a second", xlabel="workers", xticks=[1, 2])
    cost.set(title="acc: seconds an evaluation", xlabel="entries")
    colours = {"time-ours": OURS, "time-svgp": COLOURS[0], "time-cp": COLOURS[4]}
    for axes, (data, rank) in zip(others, names, strict=False):
        mine = [row for row in found if row.data == data and row.rank in (rank, None)]
        for label, colour in colours.items():
            line = sorted((row.seconds, row.mean) for row in mine if row.label.startswith(f"{label} "))
            if line:
                axes.plot(*zip(*line, strict=True), marker="o", color=colour, label=label.removeprefix("time-"))
        axes.set(title=f"{data}, rank {rank}", xlabel="s of training", ylabel=f"test {mine[0].metric.upper()}")
        _plain_log(axes, axes.xaxis)
    for axes in others[len(names) :]:
        axes.set_axis_off()
    _legend(panels)
    return panels


def _is(cell: Cell, label: str) -> bool:
    """Whether a cell is of a row that varies an option."""
    return cell.label.startswith(f"{label} ")


def _legend(figure: Figure) -> None:
    """One legend for all panels."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        found |= dict(zip(labels, handles, strict=True))
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=5)


if __name__ == "__main__":
    main()
