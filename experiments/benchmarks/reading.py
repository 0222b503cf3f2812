"""A csv file with ten million rows: our reader, with ids encoded and duplicates looked for, against pandas on the bare file.

Each reading is a process of its own, so that its peak of memory is its own; the two take turns.

python experiments/benchmarks/reading.py [--rows 10000000] [--rounds 7]
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import click
import common
import numpy as np

TIMED = """
import json, resource, sys, time
{imports}
started, used = time.perf_counter(), time.process_time()
found = {call}
print(json.dumps({{
    "seconds": time.perf_counter() - started,
    "processor seconds": time.process_time() - used,
    "rows": len(found),
    "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
}}))
"""
SUBJECTS = {
    "ours": ("import gptf_gpytorch.data", "gptf_gpytorch.data.read(sys.argv[1], binary=True)"),
    "pandas": ("import pandas", "pandas.read_csv(sys.argv[1])"),
    "pandas, C engine": ("import pandas", "pandas.read_csv(sys.argv[1], engine='c')"),
}


def write_clicks(path: Path, rows: int, sizes: dict[str, int]) -> None:
    """A click log with ids as Avazu's has them: hashes of eight digits, and integers."""
    rng = np.random.default_rng(0)
    users, sites = (
        np.array([f"{number:08x}" for number in rng.choice(2**32, size=sizes[name], replace=False)])
        for name in ("user", "site")
    )
    with path.open("w") as file:
        file.write("user,site,ad,hour,value\n")
        for start in range(0, rows, 10**6):
            n = min(10**6, rows - start)
            columns = (
                users[rng.integers(sizes["user"], size=n)],
                sites[rng.integers(sizes["site"], size=n)],
                rng.integers(sizes["ad"], size=n),
                rng.integers(sizes["hour"], size=n),
                rng.integers(2, size=n),
            )
            file.writelines(
                f"{user},{site},{ad},{hour},{value}\n"
                for user, site, ad, hour, value in zip(*(column.tolist() for column in columns), strict=True)
            )


def measure(name: str, path: Path) -> dict[str, float]:
    """One reading in a fresh process."""
    imports, call = SUBJECTS[name]
    command = [sys.executable, "-c", TIMED.format(imports=imports, call=call), str(path)]
    found: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    return found


@click.command(help=__doc__)
@click.option("--rows", default=10_000_000, show_default=True)
@click.option("--rounds", default=7, show_default=True)
def main(rows: int, rounds: int) -> None:
    """Measure, print the ratios, keep the JSON."""
    sizes = {"user": 1_000_000, "site": 5_000, "ad": 20_000, "hour": 240}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in SUBJECTS}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clicks.csv"
        write_clicks(path, rows, sizes)
        megabytes = path.stat().st_size / 1e6
        for turn in range(rounds + 1):
            for name in SUBJECTS:
                found = measure(name, path)
                assert found["rows"] == rows  # noqa: S101
                if turn:  # the first brings the file into the page cache
                    runs[name].append(found)
    medians = {
        name: {
            key: float(np.median([run[key] for run in found])) for key in ("seconds", "processor seconds", "peak GB")
        }
        for name, found in runs.items()
    }
    ours = medians["ours"]
    result = {
        "rows": rows,
        "megabytes": megabytes,
        "entities": sizes,
        "medians": medians,
        "seconds of ours in those of": {
            name: ours["seconds"] / medians[name]["seconds"] for name in list(SUBJECTS)[1:]
        },
        "within 3 times pandas": ours["seconds"] <= 3 * medians["pandas"]["seconds"],
        "within 2 GB": max(run["peak GB"] for run in runs["ours"]) <= 2,
    }
    click.echo(json.dumps(result, indent=1))
    common.write("reading", result)


if __name__ == "__main__":
    main()
