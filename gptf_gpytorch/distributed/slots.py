"""What each worker tells all others in the payloads of an evaluation, at the cost of three numbers a worker.

A worker's own data, clock and signals must not decide anything on that worker alone: the others would wait for it in the
next collective. Each worker fills its own slot, the sum that is taken anyway brings all slots to all workers, and all of
them decide the same.
"""

import torch
from torch import Tensor

from gptf_gpytorch.distributed.communicator import Communicator
from gptf_gpytorch.errors import GPTFError, NumericalError

#: Wishes beside the numbers of signals.
TIME_IS_OVER, FAILED, REFUSED = -1, -2, -3


class StopRequestedError(GPTFError):
    """A worker asked all to leave this evaluation.

    :param worker: which one.
    :param wish: the number of a signal, or one of the wishes above.
    """

    def __init__(self, worker: int, wish: int) -> None:
        super().__init__(f"Worker {worker} asked all to stop.")
        self.worker, self.wish = worker, wish


def fill(communicator: Communicator, like: Tensor, bad: slice | None) -> Tensor:
    """The slots `[size, 3]` with this worker's filled: first and last + 1 of the bad entries, and its wish."""
    slots = torch.zeros(communicator.size, 3, dtype=like.dtype, device=like.device)
    wish = float(communicator.wish)
    slots[communicator.rank] = slots.new_tensor([0.0, 0.0, wish] if bad is None else [bad.start, bad.stop, wish])
    if bad is not None and bad.stop == 0:
        slots[communicator.rank, 1] = -1.0  # no chunk alone is bad: their sum is
    return slots


def check(slots: Tensor) -> None:
    """Raise what the slots say: first a wish, then numbers that are not finite, each of the first worker that has it."""
    said = slots.tolist()
    for worker, (_, _, wish) in enumerate(said):
        if wish:
            raise StopRequestedError(worker, int(wish))
    for worker, (first, end, _) in enumerate(said):
        if end:
            which = f"entries {int(first)} to {int(end) - 1}" if end > 0 else "the sum of all entries"
            where = f" of worker {worker}'s shard" if len(said) > 1 else ""
            raise NumericalError(
                f"The statistics of the entries must be finite. Got NaN or infinity in {which}{where}: a parameter or "
                "an entry has left its range; take a smaller step, or start again from the last good state."
            )
