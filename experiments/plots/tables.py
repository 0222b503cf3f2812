"""Copy the tables of Markdown files from the committed results, between `<!-- NAME -->` and `<!-- end -->`.

python experiments/plots/tables.py README.md docs/scaling.md [--check]
"""

import json
import re
import sys
from pathlib import Path

import click

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
    p, rank = found["inducing"], 3
    fixed = found["seconds of an evaluation without entries"]
    entry = (found["median seconds"]["1"] - fixed) / found["entries"]  # seconds an entry, on one core
    hop = 1e-6 * found["allreduce microseconds"]["2"]["1"] / 2  # a message to a neighbour and back is two
    problems = {"the paper's click log": (97_000, rank * 260_390), "1e9 entries": (10**9, rank * 260_390)}
    lines = ["| workers | " + " | ".join(f"{name}, {gbit} Gbit/s" for name in problems for gbit in (10, 100)) + " |"]
    lines.append("|---" * (1 + 2 * len(problems)) + "|")
    for count in (1, 8, 32, 128, 512, 1024):
        cells = []
        for n, parameters in problems.values():
            for gbit in (10, 100):
                alone = fixed + entry * n
                together = sum(
                    2 * (count - 1) * hop + 2 * (count - 1) / count * 64 * numbers / (gbit * 1e9)
                    for numbers in (p * p + p, parameters)
                )
                seconds = fixed + entry * n / count + (together if count > 1 else 0.0)
                cells.append(f"{seconds:.3g} s, {alone / seconds:.3g}x")
        lines.append(f"| {count:,} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES = {"evaluation": evaluation, "workers": workers}


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
