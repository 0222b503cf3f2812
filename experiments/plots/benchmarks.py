"""Figures of the benchmarks, from their JSON alone.

python experiments/plots/benchmarks.py [--results experiments/results] [--figures experiments/results/figures]
"""

import json
import re
from pathlib import Path
from typing import Any

import click
import matplotlib as mpl
import numpy as np
from cost_model import NETWORKS, PROBLEMS, CostModel, Problem
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RESULTS = Path(__file__).parents[1] / "results"
OURS, PEER, FLOOR = "#1f5fa8", "#a9b4c0", "#c8502d"
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
}


@click.command(help=__doc__)
@click.option("--results", type=click.Path(path_type=Path, exists=True), default=RESULTS)
@click.option("--figures", type=click.Path(path_type=Path), default=None, help="by default, a folder in the results")
def main(results: Path, figures: Path | None) -> None:
    """Draw every figure."""
    figures = results / "figures" if figures is None else figures
    figures.mkdir(parents=True, exist_ok=True)
    drawn = {
        "evaluation": (evaluation, "evaluation"),
        "prediction": (prediction, "prediction"),
        "entries": (entries, "scaling"),
        "inducing_and_rank": (inducing_and_rank, "sweep"),
        "memory": (memory, "scaling"),
        "workers": (workers, "workers"),
    }
    with mpl.rc_context(STYLE):
        for name, (draw, source) in drawn.items():
            figure = draw(_load(results / f"{source}.json"))
            path = figures / f"{name}.png"
            figure.savefig(path, dpi=110, metadata={"Software": None})
            click.echo(f"wrote {path}")


def _load(path: Path) -> dict[str, Any]:
    """A result, or the command that writes it."""
    if not path.exists():
        raise click.ClickException(f"The results must be there before they are drawn. Got no {path}: make bench.")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def evaluation(result: dict[str, Any]) -> Figure:
    """Seconds of one evaluation, each subject against the floor, at both states."""
    states = result["states"]
    names = [name for name in next(iter(states.values()))["median seconds"] if name != "GEMM"]
    figure = Figure(figsize=(8.4, 1.3 + 0.29 * len(names)), layout="constrained")
    figure.suptitle(
        f"One evaluation of the bound and its gradient, {_sizes(result)}, {_threads(result)}",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    panels = figure.subplots(1, len(states), sharey=True, sharex=True, squeeze=False)[0]
    for axes, (state, found) in zip(panels, states.items(), strict=True):
        floor = found["GEMM floor seconds"]
        values = {name: found["median seconds"][name] for name in names}
        _bars(axes, values, {name: f"{_short(value)} s, {value / floor:.1f}x" for name, value in values.items()})
        axes.axvline(floor, color=FLOOR, linewidth=1.4, linestyle="--")
        axes.annotate("GEMM floor", (floor, 1.0), (3, 1), ("data", "axes fraction"), "offset points", color=FLOOR)
        axes.set_xscale("log")
        axes.set_xlim(0.6 * floor, 4.5 * max(values.values()))
        axes.set_xlabel("seconds (labels: and times the floor)")
        axes.set_title(f"{state}\n", loc="left")
    return figure


def prediction(result: dict[str, Any]) -> Figure:
    """Entries a second, of mean and variance."""
    rates = result["entries a second"]
    figure = Figure(figsize=(6.0, 1.9), layout="constrained")
    axes = figure.subplots()
    _bars(axes, rates, {name: f"{rate:,.0f}" for name, rate in rates.items()})
    axes.set_xlim(0, 1.2 * max(rates.values()))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(mpl.ticker.MaxNLocator(5))
    axes.set_xlabel("entries a second")
    axes.set_title(f"Mean and variance in chunks of {result['chunk']:,}, {_sizes(result)}", loc="left")
    return figure


def entries(result: dict[str, Any]) -> Figure:
    """Cost against N, with the fitted power."""
    n, seconds = np.array(result["entries"], dtype=float), np.array(result["seconds"])
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    # The exponent is the JSON's; the line goes through the middle of the points.
    level = np.exp(np.mean(np.log(seconds) - result["exponent"] * np.log(n)))
    axes.loglog(n, level * n ** result["exponent"], color=FLOOR, linestyle="--", label=_power(result["exponent"]))
    axes.loglog(n, seconds, "o", color=OURS, label="ours")
    axes.set_xlabel("entries N")
    axes.set_ylabel("seconds an evaluation")
    axes.set_title(f"Cost against entries, p = {result['inducing']}, {_threads(result)}", loc="left")
    axes.legend(loc="upper left")
    return figure


def inducing_and_rank(result: dict[str, Any]) -> Figure:
    """Cost against p, with the floor, and against the rank of the modes."""
    seconds, above = result["median seconds"], result["times the floor"]
    p = np.array(_numbers("p = ", seconds))
    cost = np.array([seconds[f"p = {number}"] for number in p])
    floor = cost / [above[f"p = {number}"] for number in p]
    ranks = _numbers("rank ", seconds)
    figure = Figure(figsize=(8.4, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(p, cost, "o-", color=OURS, label="ours")
    left.loglog(p, floor, "--", color=FLOOR, label="GEMM floor")
    left.set_xticks(p, [str(number) for number in p])
    left.xaxis.set_minor_locator(mpl.ticker.NullLocator())
    left.set_xlabel("inducing points p")
    left.set_ylabel("seconds an evaluation")
    left.set_title(f"Cost against p, N = {result['entries']:,}", loc="left")
    left.legend(loc="upper left")
    right.plot(ranks, [seconds[f"rank {rank}"] for rank in ranks], "o-", color=OURS)
    right.set_ylim(0, 1.15 * right.get_ylim()[1])
    right.set_xticks(ranks)
    right.set_xlabel("rank of each mode; D is the sum over modes")
    right.set_title(f"Cost against D, N = {result['entries']:,}", loc="left")
    return figure


def memory(result: dict[str, Any]) -> Figure:
    """Growth of the peak memory beyond the process with its entries."""
    n, mebi = np.array(result["entries"]), 2.0**20
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot(n, np.array(result["peak memory growth, bytes"]) / mebi, "o-", color=OURS, label="ours")
    for key, value in result.items():
        named = re.fullmatch(r"(\w+) peak memory growth at (\d+), bytes", key)
        if named:
            axes.plot(
                int(named[2]), value / mebi, "s", color=PEER, markeredgecolor="#5d6873", label=f"GPyTorch {named[1]}"
            )
    axes.set_xscale("log")
    axes.set_ylim(0, None)
    axes.set_xlabel("entries N")
    axes.set_ylabel("MiB")
    axes.set_title(f"Growth of peak memory in evaluations, p = {result['inducing']}", loc="left")
    axes.legend()
    return figure


def workers(result: dict[str, Any]) -> Figure:
    """What was measured on one and two workers, and what the cost model says of many."""
    model, measured = CostModel.of(result), {int(count): value for count, value in result["median seconds"].items()}
    counts = 2 ** np.arange(11)
    here = Problem(result["entries"], result["parameters"], result["dimensions"])
    panels = {f"{result['entries']:,} entries": here, **PROBLEMS}
    figure = Figure(figsize=(9.6, 3.5), layout="constrained")
    for axes, (name, problem) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        alone = model.seconds(1, problem, NETWORKS[0])
        axes.loglog(counts, alone / counts, ":", color=PEER, label="perfect")
        for gbit, colour, line in zip(NETWORKS, (FLOOR, OURS), ("-", "--"), strict=True):
            seconds = [model.seconds(int(count), problem, gbit) for count in counts]
            axes.loglog(counts, seconds, line, color=colour, label=f"model, {gbit} Gbit/s")
        if problem is here:
            axes.loglog(list(measured), list(measured.values()), "o", color="#222222", label="measured")
        axes.set_xticks([1, 8, 64, 1024], ["1", "8", "64", "1024"])
        axes.xaxis.set_minor_locator(mpl.ticker.NullLocator())
        axes.set_xlabel("workers of one core")
        axes.set_title(name, loc="left")
        axes.legend(loc="lower left", fontsize=7)
    figure.axes[0].set_ylabel("seconds an evaluation")
    return figure


def _bars(axes: Axes, values: dict[str, float], labels: dict[str, str]) -> None:
    """Horizontal bars from the top down, ours in another colour than the peers, each with its label."""
    colours = [OURS if name.startswith("ours") else PEER for name in values]
    bars = axes.barh(list(values), list(values.values()), color=colours, height=0.68)
    axes.bar_label(bars, [labels[name] for name in values], padding=3, fontsize=8)
    axes.set_ylim(len(values) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def _numbers(prefix: str, names: dict[str, float]) -> list[int]:
    """The numbers of the names that are the prefix and a number, in order."""
    return sorted(int(name.removeprefix(prefix)) for name in names if re.fullmatch(rf"{re.escape(prefix)}\d+", name))


def _sizes(result: dict[str, Any]) -> str:
    return f"N = {result['entries']:,}, p = {result['inducing']}"


def _threads(result: dict[str, Any]) -> str:
    return f"{result['machine']['torch_threads']} threads"


def _power(exponent: float) -> str:
    return f"fit: $N^{{{exponent:.3f}}}$"


def _short(value: float) -> str:
    return f"{value:#.2g}" if value < 1 else f"{value:.1f}"


if __name__ == "__main__":
    main()
