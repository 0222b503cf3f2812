"""Copy the tables of a Markdown file from the committed results, between `<!-- evaluation -->` and `<!-- end -->`.

python experiments/plots/tables.py README.md [--check]
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


@click.command(help=__doc__)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing; fail if there is something to change.")
def main(path: Path, check: bool) -> None:
    """Write, or compare."""
    text = path.read_text(encoding="utf-8")
    table = f"<!-- evaluation -->\n{evaluation()}\n<!-- end -->"
    fresh, count = re.subn(r"<!-- evaluation -->\n.*?<!-- end -->", lambda _: table, text, flags=re.DOTALL)
    if not count:
        sys.exit(f"{path} has no place for the table")
    if check and fresh != text:
        sys.exit(f"{path} is not what the results say: run this without --check")
    if not check:
        path.write_text(fresh, encoding="utf-8")


if __name__ == "__main__":
    main()
