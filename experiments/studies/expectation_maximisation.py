"""The collapsed bound against sequential updates: q(v) at its optimum, then some steps for all else with q(v) held fixed.

The sequential updates hold q(v) itself fixed, as is common, or the whitened q(v), which moves with K_BB. All start from the
same parameters, use the same optimiser, and may spend the same passes over the entries.

python experiments/studies/expectation_maximisation.py [--budget 1000] [--evaluations 10]
"""

from typing import Any

import click
import torch
from torch import Tensor
from uncollapsed import Counted, gaussian, posterior, write

from gptf_gpytorch import CollapsedELBO, TrainConfig, initialize
from gptf_gpytorch.training.saved import build

SHAPE = (60, 40, 50)
Trace = list[tuple[int, float, float]]


def problem(n: int, inducing: int, seed: int) -> tuple[CollapsedELBO, Tensor, Tensor]:
    """Standardised values of a nonlinear function of hidden factors, and a model at its start."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(d, (n,), generator=generator) for d in SHAPE], dim=-1)
    hidden = [torch.randn(d, generator=generator, dtype=torch.float64) for d in SHAPE]
    a, b, c = (table[indices[:, mode]] for mode, table in enumerate(hidden))
    y = torch.sin(2.0 * a) * b + c + 0.3 * torch.randn(n, generator=generator, dtype=torch.float64)
    y = (y - y.mean()) / y.std()
    mll = build(TrainConfig(method="paper", rank=3, inducing=inducing, seed=seed), SHAPE, n)
    initialize(mll, indices, y, seed=seed)
    return mll, indices, y


def collapsed(n: int, inducing: int, budget: int, optimizer: str, seed: int) -> Trace:
    """q(v) is at its optimum in every evaluation."""
    mll, indices, y = problem(n, inducing, seed)
    objective = Counted(list(mll.parameters()), lambda: mll(mll.model.train()(indices), y) * n)
    objective.climb(optimizer, budget)
    return objective.trace


def sequential(
    n: int, inducing: int, budget: int, optimizer: str, seed: int, *, evaluations: int, whitened: bool
) -> Trace:
    """q(v) is at its optimum once in ``evaluations`` evaluations."""
    mll, indices, y = problem(n, inducing, seed)
    q: list[Tensor] = []
    objective = Counted(list(mll.parameters()), lambda: gaussian(mll, indices, y, q[0], q[1], whitened=whitened))
    while objective.spent < budget:
        mll(mll.model.train()(indices), y)  # writes q(v)
        objective.spent += 1
        q = list(posterior(mll, whitened=whitened))
        objective.climb(optimizer, min(budget, objective.spent + 2 * evaluations))
    return objective.trace


@click.command(help=__doc__)
@click.option("--entries", "n", default=2000, show_default=True)
@click.option("--inducing", default=50, show_default=True)
@click.option("--budget", default=1000, show_default=True, help="passes over all entries")
@click.option("--evaluations", default=10, show_default=True, help="of a step with q(v) held fixed")
@click.option("--optimizer", type=click.Choice(["lbfgs", "gd"]), default="lbfgs", show_default=True)
@click.option("--seeds", default=3, show_default=True)
def main(n: int, inducing: int, budget: int, evaluations: int, optimizer: str, seeds: int) -> None:
    """Run all ways from all starts, print where they end, keep the JSON."""
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        traces = {"collapsed": collapsed(n, inducing, budget, optimizer, seed)}
        for whitened in (False, True):
            way = "sequential, whitened" if whitened else "sequential"
            traces[way] = sequential(n, inducing, budget, optimizer, seed, evaluations=evaluations, whitened=whitened)
        for way, trace in traces.items():
            runs.append({"way": way, "seed": seed, "trace": trace})
            passes, seconds, bound = trace[-1]
            click.echo(f"seed {seed}  {way:20} bound {bound:10.2f} after {passes} passes, {seconds:.1f} s")
    write(
        "expectation_maximisation",
        {
            "entries": n,
            "inducing": inducing,
            "budget": budget,
            "evaluations": evaluations,
            "optimizer": optimizer,
            "runs": runs,
        },
    )


if __name__ == "__main__":
    main()
