"""What tracking costs: the steps of a run without it, with a server that answers, and with one that is gone, interleaved.

python experiments/benchmarks/tracking.py [--entries 100000] [--iterations 100] [--rounds 5]
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
@click.option("--iterations", default=100, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(entries: int, iterations: int, rounds: int) -> None:
    """Measure, print ratios, keep the JSON."""
    indices, y = common.entries(entries)
    data = TensorEntries(indices, y, shape=common.SHAPE)
    seconds: dict[str, list[float]] = {"without": [], "server answers": [], "server is gone": []}
    with tempfile.TemporaryDirectory() as folder, running(tracking_server(Path(folder))) as server:
        uris = {"server answers": server.uri, "server is gone": f"http://127.0.0.1:{free_port()}"}
        for turn in range(rounds + 1):
            for name, found in seconds.items():
                os.environ["MLFLOW_TRACKING_URI"] = uris.get(name, "")
                tracker = None if name == "without" else MLflowTracker()
                output = Path(folder) / f"{name} {turn}"
                result = fit(
                    data,
                    rank=3,
                    inducing=100,
                    max_iterations=iterations,
                    tolerance=0.0,
                    patience=0,
                    tracker=tracker,
                    output=output,
                )
                if turn:
                    found.append(result.timings["steps"] + result.timings["held_out"])
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    ratios = {
        name: statistics.median(a / b for a, b in zip(found, seconds["without"], strict=True))
        for name, found in seconds.items()
        if name != "without"
    }
    click.echo(f"{medians}\nslower by {ratios}")
    common.write(
        "tracking",
        {
            "entries": entries,
            "iterations": iterations,
            "rounds": rounds,
            "median seconds": medians,
            "slower by": ratios,
        },
    )


if __name__ == "__main__":
    main()
