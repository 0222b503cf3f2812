"""One worker against two, a thread each, and what their collectives cost: measured by Horovod's own timeline.

python experiments/benchmarks/workers.py [--entries 1000000] [--inducing 100] [--rounds 15]

Both are measured by one job of two workers, in turn: worker 0 evaluates all entries while the other waits, then each
evaluates its half and they add. What else the machine does falls on both alike. A second job writes the timeline, which costs
its workers time.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import common
import torch

from gptf_gpytorch.distributed.communicator import Communicator, current

SMALL = 1_000  # entries at which what does not depend on them is seen


@click.command(help=__doc__)
@click.option("--entries", default=1_000_000, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--as-worker", type=click.Path(path_type=Path), hidden=True)
def main(entries: int, inducing: int, rounds: int, as_worker: Path | None) -> None:
    """Start jobs of two workers and one of four, print the ratios, keep the JSON."""
    if as_worker is not None:
        _work(entries, inducing, rounds, as_worker)
        return
    two = _job(2, entries, inducing, rounds)
    watched = _job(2, entries, inducing, 3, timeline=True)
    four = _job(4, SMALL, inducing, 3)  # only for its collectives: there are two cores
    result = {
        "entries": entries,
        "inducing": inducing,
        "dimensions": len(common.SHAPE) * common.RANK,
        "parameters": two["parameters"],
        "rounds": rounds,
        "threads a worker": 1,
        "median seconds": {"1": statistics.median(two["alone"]), "2": statistics.median(two["together"])},
        # Medians of the ratios of neighbours in time; the products say what the machine itself gives.
        "two workers are faster by": _ratio(two["alone"], two["together"]),
        "fastest against fastest": min(two["alone"]) / min(two["together"]),
        "two products at a time are faster by": 2.0 * _ratio(two["product alone"], two["product together"]),
        "few entries": SMALL,
        "median seconds of few entries": statistics.median(two["small"]),
        "collectives of two workers, share of an evaluation": watched["share"],
        "collectives an evaluation": watched["collectives"],
        "microseconds of a collective, without waiting for it": 1e6 * watched["span"],
        "allreduce microseconds": {"2": two["latency"], "4": four["latency"]},
        "cycle milliseconds": two["cycle"],
    }
    click.echo(json.dumps(result, indent=1))
    common.write("workers", result)


def _ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def _job(workers: int, entries: int, inducing: int, rounds: int, *, timeline: bool = False) -> dict[str, Any]:
    """One job under horovodrun; what worker 0 reported, on request with the collectives' time from the timeline."""
    with tempfile.TemporaryDirectory() as folder:
        report, events = Path(folder) / "report.json", Path(folder) / "timeline.json"
        command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(workers), "--gloo"]
        command += ["--timeline-filename", str(events)] if timeline else []
        command += [sys.executable, __file__, "--rounds", str(rounds), "--as-worker", str(report)]
        command += ["--entries", str(entries), "--inducing", str(inducing)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, timeout=1200, env=environment, stdout=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(report.read_text())
        spans = _spans(events) if timeline else {}
    mine = [spans[name] for name in spans if any(f"sum of {length} " in name for length in found["lengths"])]
    evaluations = 2 * len(found["together"]) + 1  # of each round one is timed; the last is to see what is summed
    found["collectives"] = sum(len(calls) for calls in mine) / evaluations
    spans_of_mine = [call for calls in mine for call in calls]
    found["share"] = sum(spans_of_mine) / (statistics.median(found["together"]) * evaluations)
    found["span"] = statistics.median(spans_of_mine) if timeline else None
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


def _work(entries: int, inducing: int, rounds: int, report: Path) -> None:
    """Evaluate alone and together, and time sums of the lengths that an evaluation has."""
    communicator = current()

    def interleave(subjects: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
        """Seconds of each subject on this worker; all workers begin each of them at the same time.

        As in training each time is that of an evaluation after another one: a core that was idle begins slowly.
        """
        seconds: dict[str, list[float]] = {name: [] for name in subjects}
        for _ in range(rounds):
            for name, run in subjects.items():
                run()
                communicator.sum(torch.zeros(3))
                started = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - started)
        return seconds

    def alone(run: Callable[[], None]) -> Callable[[], object]:
        return run if communicator.rank == 0 else lambda: None

    indices, y = common.entries(entries)
    whole = common.evaluation(common.problem(indices, y, inducing), indices, y)
    few = common.evaluation(common.problem(indices[:SMALL], y[:SMALL], inducing), indices[:SMALL], y[:SMALL])
    mine = [part[communicator.rank :: communicator.size].contiguous() for part in (indices, y)]
    mll = common.problem(*mine, inducing, communicator=communicator, num_data=entries)
    half = common.evaluation(mll, *mine)
    product = common.gemm()
    found: dict[str, Any] = {
        **interleave({"alone": alone(whole), "together": half}, rounds),
        **interleave({"small": alone(few)}, rounds),
        **interleave({"product alone": alone(product), "product together": product}, rounds),
        "parameters": sum(parameter.numel() for parameter in mll.model.parameters()),
        "lengths": _lengths(communicator, half),
        "latency": {},
        "cycle": float(os.environ["HOROVOD_CYCLE_TIME"]),
    }
    for length in (1, inducing**2, found["parameters"]):
        vector = torch.zeros(length + 7, dtype=torch.float64)  # a name of its own in the timeline
        times = common.interleave({"sum": lambda vector=vector: communicator.sum(vector)}, 50)["sum"]  # type: ignore[misc]
        found["latency"][str(length)] = 1e6 * statistics.median(times)
    if communicator.rank == 0:
        report.write_text(json.dumps(found))
    communicator.close()


if __name__ == "__main__":
    main()
