"""Cost of an evaluation against the number of inducing points and the rank, and at the size of the paper's DBLP iteration.

python experiments/benchmarks/sweep.py [--entries 100000] [--rounds 3]

The paper's iteration on DBLP (10,000 x 200 x 10,000, 310,370 training entries, rank 3, 100 inducing points) took 87 s on
50 mappers; the entries here are random ones of that size.
"""

from typing import Any

import click
import common
import peers

INDUCING, RANKS = (25, 50, 100, 200, 400), (1, 3, 5, 8, 10)
DBLP = {"shape": (10_000, 200, 10_000), "entries": 310_370}


@click.command(help=__doc__)
@click.option("--entries", default=100_000, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(entries: int, rounds: int) -> None:
    """Measure, print, keep the JSON."""
    indices, y = common.entries(entries)
    points = {f"p = {p}": common.problem(indices, y, p) for p in INDUCING}
    ranks = {f"rank {r}": common.problem(indices, y, 100, rank=r) for r in RANKS}
    subjects = {name: common.evaluation(mll, indices, y) for name, mll in {**points, **ranks}.items()}
    for binary in (False, True):
        cells, values = common.entries(DBLP["entries"], binary=binary, shape=DBLP["shape"])
        mll = common.problem(cells, values, 100, binary=binary, shape=DBLP["shape"])
        subjects[f"DBLP size, {'probit' if binary else 'gaussian'}"] = common.evaluation(mll, cells, values)
    for p in (INDUCING[0], 100):  # what grows with p: the peers are slow enough at 100
        for name, peer in peers.TORCH.items():
            subjects[f"{name}, p = {p}"] = peer(points[f"p = {p}"], indices, y)
    subjects["GEMM"] = common.gemm()
    seconds = common.medians(common.interleave(subjects, rounds))
    result: dict[str, Any] = {
        "entries": entries,
        "median seconds": seconds,
        "times the floor": {
            f"p = {p}": seconds[f"p = {p}"] / common.floor(entries, p, seconds["GEMM"]) for p in INDUCING
        },
    }
    click.echo(result)
    common.write("sweep", result)


if __name__ == "__main__":
    main()
