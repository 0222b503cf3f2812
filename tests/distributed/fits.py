"""Run by horovodrun: what workers do in fit(), one thing after the other; what each one saw goes to its output."""

import hashlib
import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch

from gptf_gpytorch import GPTFError, TensorEntries, fit
from gptf_gpytorch.distributed import Communicator, current
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.training.checkpoints import Checkpoints
from gptf_gpytorch.training.objective import BoundObjective

cells = torch.cartesian_prod(torch.arange(9), torch.arange(8))
entries = TensorEntries(cells, torch.sin(cells.sum(1).double()), shape=(9, 8))
SMALL = {"method": "paper", "rank": 1, "inducing": 8, "chunk_size": 10, "tolerance": 0.0}
folder = Path(sys.argv[1])


def state(comm: Communicator, data: TensorEntries = entries, **options: object) -> list[object]:
    result = fit(data, communicator=comm, **{**SMALL, **options})
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in result.fitted.mll.parameters()])
    counted = all(step.entries_per_second > 0 for step in result.history.steps)
    return [result.bound.hex(), hashlib.sha256(flat.numpy().tobytes()).hexdigest(), result.reason, counted]


def failure(comm: Communicator, **options: object) -> str:
    try:
        return str(state(comm, **options))
    except GPTFError as error:
        return f"{type(error).__name__}: {error}"


def nan_on_worker_1(comm: Communicator) -> str:
    """A factor that is NaN on one worker only, at the sixth evaluation and from then on."""
    original, count = BoundObjective.assign, [0]

    def assign(self: BoundObjective, x: torch.Tensor) -> None:
        original(self, x)
        count[0] += 1
        if comm.rank == 1 and count[0] > 5:
            with torch.no_grad():
                self.mll.model.factors[0][-1] = float("nan")  # row 8 belongs to the last entries, worker 1's

    BoundObjective.assign = assign
    try:
        return failure(comm, max_iterations=9)
    finally:
        BoundObjective.assign = original


def broken_disk(comm: Communicator) -> str:
    """A folder that goes away under worker 0."""
    from gptf_gpytorch.training import checkpoints

    original, count = checkpoints.save, [0]

    def save(folder: Path, *rest: object) -> None:
        count[0] += 1
        original(folder if count[0] < 3 else Path("/dev/null/nowhere"), *rest)

    checkpoints.save = save
    try:
        return failure(comm, output=folder / "disk", checkpoint_seconds=0.0, max_iterations=9)
    finally:
        checkpoints.save = original


def locked(comm: Communicator) -> str:
    """A folder that another run holds."""
    with Checkpoints(folder / "held").lock() if comm.rank == 0 else nullcontext():
        return failure(comm, output=folder / "held")


def damage(comm: Communicator, which: str) -> None:
    """Flip a bit of checkpoints."""
    for path in (folder / "damaged").glob(f"{which}/state.safetensors") if comm.rank == 0 else ():
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


comm = current(timeout=60)
rank = comm.rank
mine = folder / f"worker-{rank}" / "run"  # the others' folder does not exist, and must not come to exist
report: dict[str, object] = {}
for optimizer in ("gd", "adam", "lbfgs"):
    report[optimizer] = state(comm, optimizer=optimizer, max_iterations=6)
report["fewer entries than workers"] = state(comm, data=entries[:1], inducing=1, max_iterations=2)
report["whole"] = state(comm, max_iterations=12)
report["first part"] = state(comm, max_iterations=5, output=mine)
report["resumed"] = state(comm, max_iterations=12, output=mine, resume=True)
report["seed"] = failure(comm, seed=rank)
report["data"] = failure(comm, data=entries if rank == 0 else entries[:-1])
report["again"] = failure(comm, output=mine)
report["lock"] = failure(comm, output=folder / "file")
report["locked"] = locked(comm)
often = {"output": folder / "damaged", "checkpoint_seconds": 0.0}
state(comm, max_iterations=5, **often)
damage(comm, "step-00000005")
report["damaged"] = state(comm, max_iterations=12, resume=True, **often)
damage(comm, "step-*")
report["all damaged"] = failure(comm, max_iterations=15, resume=True, **often)
if (folder / "tiny").is_dir():
    report["full"] = failure(comm, output=folder / "tiny", checkpoint_seconds=0.0, keep=1000, max_iterations=200)
report["nan"] = nan_on_worker_1(comm)
report["disk"] = broken_disk(comm)
report["time"] = state(comm, max_iterations=10**6, max_seconds=0.5, validation=0.0)


def fails() -> None:
    if rank == 1:
        raise MemoryError("no memory")


try:
    together(comm, fails)
except GPTFError as error:
    report["one fails"] = f"{type(error).__name__}: {error}"
print("RESULT", json.dumps(report), flush=True)
comm.close()
