"""Run by horovodrun: a run that takes its time, so that workers can be killed and taken in meanwhile."""

import sys
import time
from pathlib import Path
from typing import Any

import torch

from gptf_gpytorch import TensorEntries, TrainConfig, fit
from gptf_gpytorch.distributed import Communicator, ElasticCommunicator, current
from gptf_gpytorch.tracking.tracker import Tracker

CONFIG = TrainConfig(
    method="paper", rank=2, inducing=12, chunk_size=60, max_iterations=80, tolerance=0.0, gradient_tolerance=0.0,
    patience=0, checkpoint_seconds=0.0, keep=1000,
)  # fmt: skip


def entries() -> TensorEntries:
    generator = torch.Generator().manual_seed(0)
    cells = torch.cartesian_prod(torch.arange(12), torch.arange(10), torch.arange(8))
    hidden = [torch.randn(d, generator=generator, dtype=torch.float64) for d in (12, 10, 8)]
    a, b, c = (table[cells[:, mode]] for mode, table in enumerate(hidden))
    noise = torch.randn(len(cells), generator=generator, dtype=torch.float64)
    return TensorEntries(cells, a * b + c + 0.5 * noise, shape=(12, 10, 8))


class Slow(Tracker):
    """Prints what it hears, and takes a while for it."""

    def step(self, record: Any) -> None:
        print(f"step {record['iteration']}.", flush=True)
        time.sleep(0.05)

    def note(self, text: str) -> None:
        print(text, flush=True)


def main(folder: Path, resumed: Path | None = None) -> None:
    """Train in a folder on workers that come and go; or there and, from what is in it, in another one, on workers that stay."""
    if resumed is None:
        communicator: Communicator = ElasticCommunicator(timeout=60)
        fit(entries(), CONFIG, communicator=communicator, tracker=Slow(), output=folder)
    else:
        communicator = current(timeout=60)
        fit(entries(), CONFIG, communicator=communicator, output=folder)
        fit(entries(), CONFIG, communicator=communicator, output=resumed, resume=True)
    communicator.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
