"""GPTF as one would write it with stock GPyTorch: an uncollapsed SVGP on minibatches, trained with Adam."""

import time
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import gpytorch
import numpy as np
import torch
from torch import Tensor

from baselines.base import Array, Fitted, Task
from baselines.tools import hold_out, score
from gptf_gpytorch import InputError, SingleProcess, TensorEntries, TrainConfig, initialize
from gptf_gpytorch.distributed.threads import one_core_each
from gptf_gpytorch.training.objective import Scaling
from gptf_gpytorch.training.saved import build


class SVGP(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    """The parts of a GPTF model under GPyTorch's own strategy, with q(v) a parameter that starts at the prior."""

    def __init__(self, model: gpytorch.models.ApproximateGP) -> None:
        points = model.variational_strategy.inducing_points.detach()
        q = gpytorch.variational.CholeskyVariationalDistribution(len(points), mean_init_std=0.0).to(points)
        jitter = model.variational_strategy.jitter_val
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, q, jitter_val=jitter))
        self.factors, self.mean_module, self.covar_module = model.factors, model.mean_module, model.covar_module

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def __call__(self, indices: Tensor, prior: bool = False, **kwargs: Any) -> gpytorch.distributions.Distribution:
        return super().__call__(self.factors(indices), prior=prior, **kwargs)


@dataclass(frozen=True)
class SVGPAdam:
    """GPTF with the model, embedding and start of ours, and q(v) learned by stochastic gradients with the rest.

    Learning rate and batch size are those of the grid that predict held-out training entries best after a tenth of the
    steps. The best then trains until those entries have not been predicted better for ``patience`` looks, and the
    parameters of the best look are kept. ``details["history"]`` has seconds of training (looks are not counted) and the
    held-out metric, RMSE or AUC, at each look. Where nothing is held out, the one choice of the grid takes all steps on all
    entries.

    :param inducing: p, the number of inducing points.
    :param validation: the share of the training entries that is held out.
    :param epochs: at most, counted in the smallest batches of the grid; steps are the same for all.
    :param max_steps: at most, where so many epochs would be more.
    :param looks: at the held-out entries, in the course of all steps.
    """

    name: ClassVar[str] = "svgp_adam"
    inducing: int = 100
    learning_rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    batch_sizes: tuple[int, ...] = (256, 1024)
    epochs: int = 150
    max_steps: int = 6000
    validation: float = 0.1
    looks: int = 60
    patience: int = 10

    def fit(self, task: Task) -> Fitted:
        grid = list(product(self.learning_rates, self.batch_sizes))
        if not self.validation and len(grid) > 1:
            raise InputError(
                f"{self.name} must hold out entries to choose on. Got validation = 0 and {len(grid)} choices."
            )
        with one_core_each():
            kept, held = hold_out(task, self.validation) if self.validation else (task, None)
            steps = min(self.epochs * -(-len(kept.train) // min(self.batch_sizes)), self.max_steps)
            scores = []
            for rate, batch in grid if len(grid) > 1 else ():
                run = _Run(kept, held, task, self.inducing, rate, batch)
                run.train(-(-steps // 10), looks=1, patience=1)
                scores.append(run.best)
            rate, batch = grid[int(np.argmax(scores)) if scores else 0]
            run = _Run(kept, held, task, self.inducing, rate, batch)
            run.train(steps, self.looks, self.patience)
        return Fitted(
            run.predict,
            task.binary,
            {
                "learning_rate": rate,
                "batch_size": batch,
                "validation": [[*pair, value] for pair, value in zip(grid, scores, strict=False)],
                "steps": run.steps,
                "history": run.history,
            },
        )


class _Run:
    """One learning rate and batch size, from the start."""

    def __init__(
        self, kept: Task, held: TensorEntries | None, task: Task, inducing: int, learning_rate: float, batch_size: int
    ) -> None:
        train = kept.train
        self.binary, self.held, self.batch = task.binary, held, batch_size
        self.scaling = Scaling() if task.binary else Scaling.fitted(train.values, SingleProcess())
        self.indices, self.y = train.indices.long(), self.scaling.scaled(train.values)
        config = TrainConfig(
            likelihood="probit" if task.binary else "gaussian", rank=task.rank, inducing=inducing, seed=task.seed
        )
        collapsed = build(config, train.shape, len(train))
        initialize(collapsed, self.indices, self.y, seed=task.seed)
        self.model, self.likelihood = SVGP(collapsed.model), collapsed.likelihood
        self.bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.model, num_data=len(train))
        self.optimizer = torch.optim.Adam(self.bound.parameters(), lr=learning_rate)
        self.generator = torch.Generator().manual_seed(task.seed)
        self.epoch = -(-len(train) // batch_size)
        self.steps, self.best, self.history = 0, -np.inf, list[list[float]]()

    def train(self, steps: int, looks: int, patience: int) -> None:
        """Take steps, and keep the parameters of the best look; without any, those of the last step."""
        every, waited, seconds = max(1, -(-steps // looks)), 0, 0.0
        state: dict[str, Tensor] = {}
        while self.steps < steps and waited < patience:
            began = time.perf_counter()
            self.model.train()
            for _ in range(min(every, steps - self.steps)):
                self._step()
            seconds += time.perf_counter() - began
            if self.held is None:
                continue
            value = score(self.held, self.predict(self.held.indices), self.binary)
            self.history.append([seconds, abs(value)])
            waited += 1
            if value > self.best:
                self.best, waited = value, 0
                state = {name: tensor.clone() for name, tensor in self.bound.state_dict().items()}
        if state:
            self.bound.load_state_dict(state)

    def _step(self) -> None:
        place = self.steps % self.epoch
        if not place:
            self.order = torch.randperm(len(self.y), generator=self.generator)
        rows = self.order[place * self.batch : (place + 1) * self.batch]
        self.optimizer.zero_grad()
        prior = self.model.factors.log_prior() / len(self.y)
        (-self.bound(self.model(self.indices[rows]), self.y[rows]) - prior).backward()
        self.optimizer.step()
        self.steps += 1

    def predict(self, indices: Tensor) -> Array:
        self.model.eval()
        with torch.no_grad():
            parts = [self.model(part) for part in indices.long().split(10_000)]
            if self.binary:
                return torch.cat([self.likelihood(part).probs for part in parts]).numpy()
            return (self.scaling.centre + self.scaling.spread * torch.cat([part.mean for part in parts])).numpy()
