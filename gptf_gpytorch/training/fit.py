"""``fit``: from entries and a configuration to a fitted model, alone or in lockstep with other workers."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.distributed.communicator import Communicator, SingleProcess
from gptf_gpytorch.distributed.elastic import WorkersChangedError
from gptf_gpytorch.distributed.verdicts import together
from gptf_gpytorch.errors import InputError
from gptf_gpytorch.tracking.tracker import Tracker
from gptf_gpytorch.training.config import TrainConfig
from gptf_gpytorch.training.paper_run import PaperRun
from gptf_gpytorch.training.result import Result
from gptf_gpytorch.training.sampled_run import SampledRun


def fit(
    entries: TensorEntries,
    config: TrainConfig | None = None,
    *,
    communicator: Communicator | None = None,
    tracker: Tracker | Sequence[Tracker] | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    value_name: str = "value",
    **options: Any,
) -> Result:
    """Train a model.

    :param entries: all entries, the same on every worker: each takes its share.
    :param config: the run; keyword arguments of its names may be given instead.
    :param communicator: the workers; one process by default. With an
        :class:`~gptf_gpytorch.distributed.ElasticCommunicator` every step is committed in the memory of all workers,
        and whoever is left goes on from there; newcomers are taken in.
    :param tracker: who watches; only worker 0 speaks to them.
    :param output: a folder for checkpoints and, at the end, the model; None keeps nothing.
    :param resume: go on from the last checkpoint in ``output``.
    :param value_name: what the user calls the values; saved with the model.

    Example:
        >>> import torch
        >>> indices = torch.cartesian_prod(torch.arange(9), torch.arange(8))
        >>> entries = TensorEntries(indices, torch.sin(indices.sum(1).double()), shape=(9, 8))
        >>> result = fit(entries, method="paper", rank=1, inducing=10, max_iterations=5)
        >>> len(result.history.steps)
        5

    """
    if config is not None and options:
        raise InputError(f"fit() takes a config or its fields. Got both: {', '.join(options)} beside a config.")
    config = TrainConfig.of(options, "fit()") if config is None else config
    communicator = SingleProcess() if communicator is None else communicator
    watchers = [] if tracker is None else [tracker] if isinstance(tracker, Tracker) else list(tracker)
    method = PaperRun if config.method == "paper" else SampledRun
    run = method(entries, config, communicator, watchers, output, resume, value_name)
    with ExitStack() as held:
        while True:
            try:
                together(communicator, lambda: run.store.take(held))
                return run.go()
            except WorkersChangedError as change:
                run.renew(str(change), held)
            except BaseException as error:
                run.fail(f"{type(error).__name__}: {error}")
                raise
