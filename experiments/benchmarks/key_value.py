"""The paper's claim for a gradient without keys: one dense vector against (mode, index) -> gradient pairs, on two workers.

Both schemes map the same entries with the same loops; they differ in how the gradient of the factors gets together. With
keys each entry emits a pair for each mode; pairs are sorted by key, go to the worker that owns the key (through memory, or
through files as a shuffle on disk does), are summed there, and the sums are gathered.

python experiments/benchmarks/key_value.py [--workers 2] [--rounds 5]
"""

import json
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
import gpytorch
import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch import GPTF, CollapsedELBO, initialize
from gptf_gpytorch.distributed.communicator import Communicator, current

SHAPE, RANK = (100, 100, 100), 3  # the paper's
DOUBLE: dict[str, Any] = {"dtype": torch.float64}


@click.command(help=__doc__)
@click.option("--workers", default=2, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--as-worker", type=click.Path(path_type=Path), hidden=True)
def main(workers: int, inducing: int, rounds: int, as_worker: Path | None) -> None:
    """Start the workers, print the ratios, keep the JSON."""
    if as_worker is not None:
        _work(inducing, rounds, as_worker)
        return
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        job = [
            sys.executable,
            __file__,
            "--inducing",
            str(inducing),
            "--rounds",
            str(rounds),
            "--as-worker",
            str(report),
        ]
        run = Path(sys.executable).with_name("horovodrun")
        subprocess.run([str(run), "-np", str(workers), "--gloo", *job], check=True, timeout=1200)
        result = json.loads(report.read_text())
    click.echo(json.dumps(result, indent=1))
    common.write("key_value", {"workers": workers, "shape": SHAPE, "rank": RANK, "inducing": inducing, **result})


def _work(inducing: int, rounds: int, report: Path) -> None:
    """One worker: time the schemes in turn, check that they agree, and let worker 0 report."""
    communicator = current()
    torch.set_num_threads(1)
    cells = torch.cartesian_prod(*(torch.arange(d) for d in SHAPE))
    generator = torch.Generator().manual_seed(0)
    y = torch.sin(cells.double() @ torch.rand(3, generator=generator, **DOUBLE)) + 0.1
    torch.manual_seed(0)
    model = GPTF(SHAPE, RANK, inducing)
    mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, len(y), communicator)
    mine = slice(communicator.rank, None, communicator.size)
    mine_cells, mine_y = cells[mine].contiguous(), y[mine].contiguous()
    initialize(mll, mine_cells, mine_y)
    dx = torch.randn(len(mine_y), RANK * len(SHAPE), generator=generator, **DOUBLE)  # a gradient of x, the same for all
    with tempfile.TemporaryDirectory() as folder:
        schemes: dict[str, Callable[[], Tensor]] = {
            "without keys": lambda: _dense(communicator, mine_cells, dx),
            "with keys, in memory": lambda: _keyed(communicator, mine_cells, dx, None),
            "with keys, on disk": lambda: _keyed(communicator, mine_cells, dx, Path(folder)),
        }

        def map_only() -> None:
            mll.zero_grad()
            (-mll(model.train()(mine_cells), mine_y)).backward()

        subjects: dict[str, Callable[[], object]] = {**schemes, "one evaluation of the bound": map_only}
        seconds: dict[str, list[float]] = {name: [] for name in subjects}
        for turn in range(rounds + 1):
            for name, run in subjects.items():
                communicator.sum(torch.zeros(1, **DOUBLE))  # start together
                started = time.perf_counter()
                run()
                if turn:
                    seconds[name].append(time.perf_counter() - started)
        found = {name: run() for name, run in schemes.items()}
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, found["without keys"], rtol=1e-10, atol=1e-9, msg=name)
    if communicator.rank:
        return
    median = {name: statistics.median(values) for name, values in seconds.items()}
    keyed = [name for name in schemes if name != "without keys"]
    whole = median["one evaluation of the bound"]
    report.write_text(
        json.dumps(
            {
                "entries": len(y),
                "rounds": rounds,
                "median seconds": median,
                "getting the gradient together: slower with keys by": {
                    name: median[name] / median["without keys"] for name in keyed
                },
                "a whole evaluation: slower with keys by": {
                    name: (whole - median["without keys"] + median[name]) / whole for name in keyed
                },
            }
        )
    )


def _dense(communicator: Communicator, cells: Tensor, dx: Tensor) -> Tensor:
    """Scatter into one vector for all factors, and sum it over workers."""
    tables = [torch.zeros(d, RANK, **DOUBLE) for d in SHAPE]
    for mode, table in enumerate(tables):
        table.index_add_(0, cells[:, mode], dx[:, mode * RANK : (mode + 1) * RANK])
    return communicator.sum(torch.cat([table.reshape(-1) for table in tables]))


def _keyed(communicator: Communicator, cells: Tensor, dx: Tensor, folder: Path | None) -> Tensor:
    """Emit pairs, sort them by key, send each to the owner of its key, sum, and gather the sums.

    :param folder: where pairs are spilled on their way; None keeps them in memory.
    """
    import horovod.torch as hvd

    starts = np.cumsum([0, *SHAPE])
    keys = (cells.numpy() + starts[:-1]).T.reshape(-1)  # (mode, index) as one number
    values = np.concatenate([dx[:, mode * RANK : (mode + 1) * RANK].numpy() for mode in range(len(SHAPE))])
    owners = keys % communicator.size
    order = np.lexsort((keys, owners))
    keys, values, counts = keys[order], values[order], np.bincount(owners, minlength=communicator.size)
    if folder is not None:
        keys = _spilled(keys, folder / f"keys{communicator.rank}")
        values = _spilled(values, folder / f"values{communicator.rank}")
    splits = torch.from_numpy(counts.astype(np.int32))
    got_keys, _ = hvd.alltoall(torch.from_numpy(keys), splits=splits, name="keys")
    got_values, _ = hvd.alltoall(torch.from_numpy(values), splits=splits, name="values")
    received = got_keys.numpy()
    order = np.argsort(received, kind="stable")
    distinct, first = np.unique(received[order], return_index=True)
    sums = np.add.reduceat(got_values.numpy()[order], first)
    all_keys = hvd.allgather(torch.from_numpy(distinct), name="distinct")
    all_sums = hvd.allgather(torch.from_numpy(sums), name="sums")
    gradient = torch.zeros(int(starts[-1]), RANK, **DOUBLE)
    gradient[all_keys] = all_sums
    return gradient.reshape(-1)


def _spilled(array: np.ndarray[Any, Any], path: Path) -> np.ndarray[Any, Any]:
    """The array after a way through a file."""
    file = path.with_suffix(".npy")
    np.save(file, array)
    return np.asarray(np.load(file))


if __name__ == "__main__":
    main()
