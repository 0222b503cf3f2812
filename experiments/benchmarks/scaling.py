"""Cost and peak memory against the number of entries, each size in a process of its own, sizes interleaved.

python experiments/benchmarks/scaling.py [--sizes 100000,200000,400000,1000000,4000000,10000000] [--rounds 2]
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import common
import numpy as np
import peers


@click.command(help=__doc__)
@click.option("--sizes", default="100000,200000,400000,1000000,4000000,10000000", show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=2, show_default=True)
@click.option("--one", default=None, hidden=True)
def main(sizes: str, inducing: int, rounds: int, one: str | None) -> None:
    """Measure, print, keep the JSON."""
    if one is not None:
        _measure(one, int(sizes), inducing)
        return
    numbers = [int(size) for size in sizes.split(",")]
    found: dict[str, list[dict[str, float]]] = {str(n): [] for n in numbers}
    for _ in range(rounds):
        for n in numbers:
            found[str(n)].append(_child("ours", n, inducing))
    sgpr = _child("sgpr", 200_000, inducing)
    seconds = [min(run["seconds"] for run in found[str(n)]) for n in numbers]  # others' work only ever adds
    memory = [statistics.median(run["growth"] for run in found[str(n)]) for n in numbers]
    exponent = float(np.polyfit(np.log(numbers), np.log(seconds), 1)[0])
    per_entry = (memory[-1] - memory[1]) / (numbers[-1] - numbers[1])
    result: dict[str, Any] = {
        "entries": numbers,
        "inducing": inducing,
        "rounds": rounds,
        "seconds": seconds,
        "times the floor": [
            time / common.floor(n, inducing, min(run["GEMM"] for run in found[str(n)]))
            for n, time in zip(numbers, seconds, strict=True)
        ],
        "exponent": exponent,
        "peak memory growth, bytes": memory,
        "bytes an entry beyond the first sizes": per_entry,
        "SGPR peak memory growth at 200000, bytes": sgpr["growth"],
        "memory at 200000 against SGPR": memory[numbers.index(200_000)] / sgpr["growth"],
    }
    click.echo(json.dumps(result, indent=1))
    common.write("scaling", result)


def _child(subject: str, n: int, inducing: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", subject, "--sizes", str(n), "--inducing", str(inducing)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(subject: str, n: int, inducing: int) -> None:
    """One size: the best of a few evaluations, and the peak memory beyond the process with its entries."""
    indices, y = common.entries(n)
    mll = common.problem(indices, y, inducing)
    run = common.evaluation(mll, indices, y) if subject == "ours" else peers.sgpr(mll, indices, y)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the entries
    before = _status("VmRSS")
    times = common.interleave({"run": run, "GEMM": common.gemm()}, max(1, 1_000_000 // n))  # a second or more
    fastest = {name: min(found) for name, found in times.items()}
    print(json.dumps({"seconds": fastest["run"], "GEMM": fastest["GEMM"], "growth": _status("VmHWM") - before}))


def _status(name: str) -> int:
    """A number of bytes from the kernel's page on this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
