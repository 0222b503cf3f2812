"""What tracking costs: the steps of a run without it, with a server that answers, and with one that is gone, interleaved.

A second run without it in every round shows how far apart two equal runs are. The server has no cores of its own.

python experiments/benchmarks/tracking.py [--entries 100000] [--iterations 300] [--rounds 4]
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

import click
import common

from gptf_gpytorch import MLflowTracker, TensorEntries, fit

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "reporting"))
from servers import free_port, running, tracking_server


@click.command(help=__doc__)
@click.option("--entries", default=100_000, show_default=True)
@click.option("--iterations", default=300, show_default=True)
@click.option("--rounds", default=4, show_default=True)
def main(entries: int, iterations: int, rounds: int) -> None:
    """Measure, print ratios, keep the JSON."""
    indices, y = common.entries(entries)
    data = TensorEntries(indices, y, shape=common.SHAPE)
    seconds: dict[str, list[float]] = {
        name: [] for name in ("without", "server answers", "server is gone", "without again")
    }
    with tempfile.TemporaryDirectory() as folder, running(tracking_server(Path(folder))) as server:
        uris = {"server answers": server.uri, "server is gone": f"http://127.0.0.1:{free_port()}"}
        for turn in range(rounds + 1):
            # There and back, so that none is always the first or follows the same one.
            for name, found in list(seconds.items())[:: 1 if turn % 2 else -1]:
                os.environ["MLFLOW_TRACKING_URI"] = uris.get(name, "")
                tracker = MLflowTracker() if name in uris else None
                output = Path(folder) / f"{name} {turn}"
                result = fit(
                    data,
                    method="paper",
                    rank=3,
                    inducing=100,
                    max_iterations=iterations if turn else 5,  # the first round warms up
                    tolerance=0.0,
                    patience=0,
                    tracker=tracker,
                    output=output,
                )
                if turn:
                    found.append(result.timings["steps"] + result.timings["held_out"])
    # Of a round, against both of its runs without.
    without = [statistics.mean(pair) for pair in zip(seconds["without"], seconds["without again"], strict=True)]
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, without, strict=True)) for name, found in seconds.items()
    }
    for name, ratio in ratios.items():
        click.echo(f"{name:15}  {statistics.median(seconds[name]):6.2f} s  {ratio:.3f} of a round's runs without")
    common.write(
        "tracking",
        {"entries": entries, "iterations": iterations, "rounds": rounds, "seconds": seconds, "ratios": ratios},
    )


if __name__ == "__main__":
    main()
