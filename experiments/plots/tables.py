"""Copy the tables of Markdown files from the committed results (or the code), between `<!-- NAME -->` and `<!-- end -->`.

python experiments/plots/tables.py README.md docs/scaling.md experiments/README.md [--check]
"""

import json
import re
import sys
from dataclasses import fields
from pathlib import Path

import click
import experiment_tables
from cost_model import NETWORKS, PROBLEMS, CostModel

from gptf_gpytorch.commands.options import documentation, shown_default
from gptf_gpytorch.training.config import TrainConfig

RESULTS = Path(__file__).parents[1] / "results"


def evaluation() -> str:
    """One evaluation: seconds, and how many times the floor and ours."""
    found = json.loads((RESULTS / "evaluation.json").read_text())
    states = found["states"]
    head = [
        f"N = {found['entries']:,}, p = {found['inducing']}, D = {found['dimensions']}, {found['machine']['cores']} cores"
    ]
    lines = [f"| {head[0]} | {' | '.join(f'{state}: s | x floor | x ours' for state in states)} |"]
    lines.append("|---" * (1 + 3 * len(states)) + "|")
    first = next(iter(states.values()))
    for name in first["median seconds"]:
        if name == "GEMM":
            continue
        cells = []
        for state in states.values():
            seconds, floor = state["median seconds"][name], state["GEMM floor seconds"]
            ours = state["median seconds"]["ours, auto"]
            cells.append(f"{seconds:.2f} | {seconds / floor:.1f} | {seconds / ours:.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def workers() -> str:
    """What the cost model says of many workers."""
    found = json.loads((RESULTS / "workers.json").read_text())
    model = CostModel.of(found)
    lines = ["| workers | " + " | ".join(f"{name}, {gbit} Gbit/s" for name in PROBLEMS for gbit in NETWORKS) + " |"]
    lines.append("|---" * (1 + len(PROBLEMS) * len(NETWORKS)) + "|")
    for count in (1, 8, 32, 128, 512, 1024):
        cells = []
        for problem in PROBLEMS.values():
            for gbit in NETWORKS:
                alone, seconds = (model.seconds(workers, problem, gbit) for workers in (1, count))
                cells.append(f"{seconds:.3g} s, {alone / seconds:.3g}x")
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    share = found["collectives of two workers, share of an evaluation"]
    lines += [
        "",
        f"Measured: at {found['entries']:,} entries two workers are {found['two workers are faster by']:.2f} times as fast "
        f"as one, and the collectives take {100 * share:.1f}% of an evaluation.",
    ]
    return "\n".join(lines)


def key_value() -> str:
    """The gradient with and without keys."""
    found = json.loads((RESULTS / "key_value.json").read_text())
    seconds, ours = found["median seconds"], found["median seconds"]["without keys"]
    together = found["getting the gradient together: slower with keys by"]
    whole = found["a whole evaluation: slower with keys by"]
    sizes = f"{found['workers']} workers, {found['entries']:,} entries, rank {found['rank']}, p = {found['inducing']}"
    lines = [f"| {sizes} | getting the gradient together: s | x | a whole evaluation: x |", "|---" * 4 + "|"]
    lines.append(f"| without keys | {ours:.3f} | 1.0 | 1.00 |")
    lines += [f"| {name} | {seconds[name]:.3f} | {together[name]:.1f} | {whole[name]:.2f} |" for name in together]
    return "\n".join(lines)


def defaults() -> str:
    """The fields of a configuration, as the code has them."""
    lines = ["| key | default | |", "|---|---|---|"]
    texts = dict(documentation())
    for field in fields(TrainConfig):
        lines.append(f"| `{field.name}` | {shown_default(field.default)} | {texts[field.name].rstrip('.')} |")
    return "\n".join(lines)


TABLES = {
    "evaluation": evaluation,
    "workers": workers,
    "key_value": key_value,
    "defaults": defaults,
    **experiment_tables.TABLES,
}


@click.command(help=__doc__)
@click.argument("paths", type=click.Path(exists=True, path_type=Path), nargs=-1, required=True)
@click.option("--check", is_flag=True, help="Change nothing; fail if there is something to change.")
def main(paths: tuple[Path, ...], check: bool) -> None:
    """Write, or compare."""
    for path in paths:
        text = path.read_text(encoding="utf-8")
        names = [name for name in TABLES if f"<!-- {name} -->" in text]
        if not names:
            sys.exit(f"{path} has no place for a table")
        fresh = text
        for name in names:
            table = f"<!-- {name} -->\n{TABLES[name]()}\n<!-- end -->"
            fresh = re.sub(rf"<!-- {name} -->\n.*?<!-- end -->", lambda _, t=table: t, fresh, flags=re.DOTALL)  # type: ignore[misc]
        if check and fresh != text:
            sys.exit(f"{path} is not what the results say: run this without --check")
        if not check:
            path.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
