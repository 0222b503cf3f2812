"""Kill workers of elastic jobs at random moments, and see what was lost: `make soak`.

python experiments/benchmarks/soak.py [--kills 100] [--seed 0]

Each job trains on up to three workers. Two are killed in turn, the second after the rest have resumed; then hosts for two
newcomers are found, and it begins again. Every second kill waits until its victim is in a phase that was drawn before:
saves and lambda take a small share of the time.
"""

import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import common
import torch

sys.path.append(str(Path(__file__).parents[2] / "tests" / "distributed"))
from jobs import ElasticJob, Job

WORKER = Path(__file__).with_name("soak_worker.py")
WORKERS, STEPS, PATIENCE = 3, 150, 60.0
PHASES = ("save", "collective", "lambda", "map")
# The most that a resumption should take, and the share of resumptions that it is asked of.
LIMIT, SHARE = 5.0, 0.95


class Soak(ElasticJob):
    """A job whose workers say what they do."""

    def __init__(self, folder: Path, likelihood: str, data: Path) -> None:
        self.folder = folder
        super().__init__(
            folder, WORKERS, sys.executable, WORKER, folder, *_command(data, likelihood, folder / "run"), "--elastic"
        )

    def now(self) -> dict[int, list[Any]]:
        """Rank, size, step and phase of every worker that is alive."""
        found = {}
        for path in self.folder.glob("now-*"):
            pid, text = int(path.name.split("-")[1]), path.read_text()
            if os.path.exists(f"/proc/{pid}") and text.strip():
                found[pid] = _parsed(text)
        return {pid: state for pid, state in found.items() if state}

    def commits(self) -> list[dict[str, Any]]:
        """What all workers that ever were knew to be committed."""
        lines = [line for path in self.folder.glob("commits-*") for line in path.read_text().splitlines()]
        return sorted((json.loads(line) for line in lines), key=lambda record: record["time"])

    def wait(self, condition: Callable[[], Any], seconds: float = PATIENCE) -> Any:
        """What the condition returns, once it is something; None if the job ends before."""
        until = time.monotonic() + seconds
        while self.launcher.poll() is None:
            found = condition()
            if found:
                return found
            if time.monotonic() > until:
                raise TimeoutError(f"{self.now()}\n{self.end()[-5000:]}")
            time.sleep(0.002)
        return None

    def complete(self, size: int) -> bool:
        """Whether there are so many workers, and all of them hold the state."""
        return [state[1] for state in self.now().values() if state[2] > 0] == [size] * size

    def kill(self, draw: random.Random, size: int, aim: str | None) -> dict[str, Any] | None:
        """Kill one of so many workers and wait until the others have taken a step; None if the job was over before."""
        if not self.wait(lambda: self.complete(size)):
            return None
        time.sleep(draw.uniform(0.0, 1.0))
        until = time.monotonic() + 5.0

        def victim() -> int | None:
            fit = [pid for pid, state in self.now().items() if aim in (None, state[3]) or time.monotonic() > until]
            return draw.choice(sorted(fit)) if fit else None

        pid = self.wait(victim)
        if pid is None or max(state[2] for state in self.now().values()) >= STEPS - 2:
            return None
        os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        rank, _, step, phase = _parsed((self.folder / f"now-{pid}").read_text())

        def without() -> list[dict[str, Any]]:
            return [record for record in self.commits() if record["size"] < size and record["time"] > killed]

        went_on = self.wait(without)
        stepped = went_on and self.wait(lambda: [r for r in without() if r["step"] > went_on[0]["step"]])
        if not stepped:
            return None
        # All that any worker, the dead one included, knew to be committed.
        committed = max(r["step"] for r in self.commits() if r["time"] < went_on[0]["time"])
        found = {"worker": rank, "of": size, "phase": phase, "aimed at": aim, "step": step, "committed": committed}
        return found | {"went on after": went_on[0]["step"], "seconds": stepped[0]["time"] - killed}

    def waits_for_newcomers(self) -> list[float]:
        """Seconds between the last step without newcomers and the first step with them."""
        found, last = [], None
        for record in self.commits():
            if last is not None and record["step"] > last["step"] and record["size"] > last["size"]:
                found.append(record["time"] - last["time"])
            if last is None or record["step"] > last["step"]:
                last = record
        return found


def _parsed(text: str) -> list[Any]:
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except ValueError:  # it was being written
        return []


def _command(data: Path, likelihood: str, output: Path) -> list[object]:
    return [
        "train", data, "--method", "paper", "--likelihood", likelihood, "--inducing", 50, "--max-iterations", STEPS,
        "--tolerance", 0, "--gradient-tolerance", 0, "--validation", 0, "--checkpoint-seconds", 0, "--output", output,
    ]  # fmt: skip


def _data(folder: Path, likelihood: str, count: int) -> Path:
    indices, values = common.entries(count, binary=likelihood == "probit", shape=(200, 100, 50))
    cells, places = torch.unique(indices, dim=0, return_inverse=True)
    values = torch.zeros(len(cells), dtype=values.dtype).scatter(0, places, values)
    path = folder / f"{likelihood}.csv"
    rows = zip(cells.tolist(), values.tolist(), strict=True)
    path.write_text("a,b,c,value\n" + "".join(f"{a},{b},{c},{value:.6g}\n" for (a, b, c), value in rows))
    return path


def _bound(output: Path) -> float:
    run = json.loads((output / "model" / "run.json").read_text())
    return run["history"]["steps"][-1]["bound"]  # type: ignore[no-any-return]


def soak(folder: Path, kills: int, entries: int, seed: int) -> dict[str, Any]:
    """Kill so many workers, in as many jobs as it takes."""
    draw = random.Random(seed)  # noqa: S311
    found: list[dict[str, Any]] = []
    jobs: list[dict[str, Any]] = []
    data: dict[str, Path] = {}
    undisturbed: dict[str, float] = {}
    while len(found) < kills:
        likelihood, here = ("gaussian", "probit")[len(jobs) % 2], folder / f"job-{len(jobs)}"
        here.mkdir()
        if likelihood not in data:
            data[likelihood] = _data(folder, likelihood, entries)
            command = _command(data[likelihood], likelihood, here / "undisturbed")
            Job(WORKERS, sys.executable, "-m", "gptf_gpytorch", *command).finish(seconds=600)
            undisturbed[likelihood] = _bound(here / "undisturbed")
        job, before = Soak(here, likelihood, data[likelihood]), len(found)
        while len(found) < kills:
            size = WORKERS - (len(found) - before) % 2
            phase = draw.choice([p for p in PHASES if p != "lambda" or likelihood == "probit"])
            kill = job.kill(draw, size, draw.choice([phase, None]))
            if kill is None:
                break
            found.append({"job": len(jobs), "likelihood": likelihood, **kill})
            click.echo(json.dumps(found[-1]))
            if size == WORKERS - 1:
                job.offer(2)
        job.finish(seconds=600)
        bound = _bound(here / "run")
        difference = abs(bound / undisturbed[likelihood] - 1.0)
        jobs.append({"likelihood": likelihood, "kills": len(found) - before, "bound": bound})
        jobs[-1] |= {"relative difference": difference, "waits for newcomers": job.waits_for_newcomers()}
        click.echo(json.dumps(jobs[-1]))
    return _summary(found, jobs, undisturbed, entries, seed)


def _summary(
    kills: list[dict[str, Any]], jobs: list[dict[str, Any]], undisturbed: dict[str, float], entries: int, seed: int
) -> dict[str, Any]:
    seconds = sorted(kill["seconds"] for kill in kills)
    phases = [kill["phase"] for kill in kills]
    return {
        "entries": entries,
        "seed": seed,
        "steps of a job": STEPS,
        "workers of a job at most": WORKERS,
        "kills": len(kills),
        "kills of worker 0": sum(kill["worker"] == 0 for kill in kills),
        "kills in a phase": {phase: phases.count(phase) for phase in sorted(set(phases))},
        "committed steps lost": sum(max(0, kill["committed"] - kill["went on after"]) for kill in kills),
        "seconds to the next step": {
            "median": statistics.median(seconds),
            "95%": seconds[max(0, -(-95 * len(seconds) // 100) - 1)],
            "longest": seconds[-1],
        },
        f"share within {LIMIT:g} s": sum(value < LIMIT for value in seconds) / len(seconds),
        "seconds to take newcomers in": statistics.median(
            [s for job in jobs for s in job["waits for newcomers"]] or [0.0]
        ),
        "bound of an undisturbed run": undisturbed,
        "largest relative difference of a job's bound": max(job["relative difference"] for job in jobs),
        "jobs": jobs,
        "each kill": kills,
    }


@click.command(help=__doc__)
@click.option("--kills", default=100, show_default=True)
@click.option("--entries", default=40_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--name", default="soak", show_default=True, help="Of the JSON under experiments/results.")
def main(kills: int, entries: int, seed: int, name: str) -> None:
    """Kill, print what came of it, keep the JSON; an error if a number is not what it must be."""
    with tempfile.TemporaryDirectory(prefix="gptf-soak-") as folder:
        found = soak(Path(folder), kills, entries, seed)
    click.echo(json.dumps({name: value for name, value in found.items() if name != "each kill"}, indent=1))
    common.write(name, found)
    if found["committed steps lost"] or found[f"share within {LIMIT:g} s"] < SHARE:
        raise click.ClickException("No committed step may be lost, and 95% of resumptions must take less than 5 s.")


if __name__ == "__main__":
    main()
