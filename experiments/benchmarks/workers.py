"""One worker against two, a thread each, and what their collectives cost: measured by Horovod's own timeline.

python experiments/benchmarks/workers.py [--entries 1000000] [--inducing 100] [--rounds 3]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import common
import torch

from gptf_gpytorch.distributed.communicator import Communicator, current

SMALL = 20_000  # entries at which what does not depend on them is seen


@click.command(help=__doc__)
@click.option("--entries", default=1_000_000, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=3, show_default=True)
@click.option("--as-worker", type=click.Path(path_type=Path), hidden=True)
def main(entries: int, inducing: int, rounds: int, as_worker: Path | None) -> None:
    """Start jobs of one and two workers in turn, print the ratios, keep the JSON."""
    if as_worker is not None:
        _work(entries, inducing, as_worker)
        return
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(rounds):
        for workers, found in runs.items():
            found.append(_job(workers, entries, inducing))
    four = _job(4, SMALL, inducing)  # only for its collectives: there are two cores
    seconds = {workers: statistics.median(run["seconds"] for run in found) for workers, found in runs.items()}
    result = {
        "entries": entries,
        "inducing": inducing,
        "parameters": runs[1][0]["parameters"],
        "rounds": rounds,
        "threads a worker": 1,
        "median seconds": {str(workers): value for workers, value in seconds.items()},
        "two workers are faster by": seconds[1] / seconds[2],
        # What the machine itself gives: matrix products of two workers at a time, against one worker's.
        "two products at a time are faster by": 2.0
        * statistics.median(run["product"] for run in runs[1])
        / statistics.median(run["product"] for run in runs[2]),
        "HOROVOD_CYCLE_TIME": os.environ.get("HOROVOD_CYCLE_TIME"),
        "seconds of an evaluation without entries": min(run["small"] for run in runs[1]),
        "collectives of two workers, share of an evaluation": statistics.median(run["share"] for run in runs[2]),
        "collectives an evaluation": runs[2][0]["collectives"],
        "allreduce microseconds": {
            "2": _latency([run["latency"] for run in runs[2]]),
            "4": four["latency"],
        },
    }
    click.echo(json.dumps(result, indent=1))
    common.write("workers", result)


def _latency(runs: list[dict[str, float]]) -> dict[str, float]:
    return {size: statistics.median(run[size] for run in runs) for size in runs[0]}


def _job(workers: int, entries: int, inducing: int) -> dict[str, Any]:
    """One job under horovodrun; what worker 0 reported, with the collectives' time from the timeline."""
    with tempfile.TemporaryDirectory() as folder:
        report, timeline = Path(folder) / "report.json", Path(folder) / "timeline.json"
        command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(workers), "--gloo"]
        command += ["--timeline-filename", str(timeline), sys.executable, __file__]
        command += ["--entries", str(entries), "--inducing", str(inducing), "--as-worker", str(report)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, timeout=1200, env=environment, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(report.read_text())
        spans = _spans(timeline)
    mine = [spans[name] for name in spans if any(f"sum of {length} " in name for length in found["lengths"])]
    found["collectives"] = sum(len(calls) for calls in mine) / found["evaluations"]
    found["share"] = sum(sum(calls) for calls in mine) / (found["seconds"] * found["evaluations"])
    return found


def _spans(timeline: Path) -> dict[str, list[float]]:
    """Seconds of each allreduce, by the name of its tensor, without the time until all workers were there."""
    text = timeline.read_text().rstrip().rstrip(",")
    events = json.loads(text if text.endswith("]") else text + "]")
    names: dict[int, str] = {}
    opened: dict[int, list[tuple[str, float]]] = {}
    spans: dict[str, list[float]] = {}
    for event in events:
        pid = event.get("pid")
        if event.get("name") == "process_name" and "name" in event.get("args", {}):
            names[pid] = event["args"]["name"]
        elif event.get("ph") == "B":
            opened.setdefault(pid, []).append((event["name"], event["ts"]))
        elif event.get("ph") == "E" and opened.get(pid):
            name, started = opened[pid].pop()
            if name == "ALLREDUCE":
                spans.setdefault(names.get(pid, ""), []).append((event["ts"] - started) / 1e6)
    return spans


def _lengths(communicator: Communicator, run: Callable[[], None]) -> list[int]:
    """How many numbers each sum of an evaluation has."""
    lengths: list[int] = []
    plain = communicator.sum

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        lengths.append(tensor.numel())
        return plain(tensor)

    communicator.sum = counted  # type: ignore[method-assign]
    run()
    communicator.sum = plain  # type: ignore[method-assign]
    return lengths


def _work(entries: int, inducing: int, report: Path) -> None:
    """Evaluate at two sizes, and time sums of the lengths that an evaluation has."""
    communicator = current()
    found: dict[str, Any] = {}
    for name, n in (("small", SMALL), ("seconds", entries)):
        indices, y = (part[communicator.rank :: communicator.size].contiguous() for part in common.entries(n))
        mll = common.problem(indices, y, inducing, communicator=communicator, num_data=n)
        run = common.evaluation(mll, indices, y)
        seconds = common.interleave({"run": run}, 5)["run"]
        found[name] = statistics.median(seconds)
    seconds = common.interleave({"run": common.gemm()}, 15)["run"]  # all workers at once, since they have just met
    found["product"] = statistics.median(seconds)
    parameters = sum(parameter.numel() for parameter in mll.model.parameters())
    found |= {"parameters": parameters, "evaluations": 2 * 6 + 1, "lengths": _lengths(communicator, run)}
    found["latency"] = {}
    for length in (1, inducing**2, parameters):
        vector = torch.zeros(length + 7, dtype=torch.float64)  # a name of its own in the timeline
        times = common.interleave({"sum": lambda vector=vector: communicator.sum(vector)}, 50)["sum"]  # type: ignore[misc]
        found["latency"][str(length)] = 1e6 * statistics.median(times)
    if communicator.rank == 0:
        report.write_text(json.dumps(found))
    communicator.close()


if __name__ == "__main__":
    main()
