"""lambda solved inside every evaluation, by Newton or by the paper's fixed point, or optimised with everything else.

The latter either as lambda itself, or as eta = L' lambda, which is better conditioned.

All start from the same parameters and lambda = 0, use the same optimiser, and may spend the same passes over the entries.

python experiments/studies/joint_lambda.py [--budget 1000] [--optimizer lbfgs]
"""

from typing import Any

import click
import torch
from torch import Tensor
from uncollapsed import Counted, probit, write

from gptf_gpytorch import CollapsedELBO, TrainConfig, initialize
from gptf_gpytorch.training.saved import build

SHAPE = (60, 40, 50)
WAYS = ("newton", "fixed_point", "joint", "joint, whitened")


def problem(solver: str, n: int, inducing: int, seed: int) -> tuple[CollapsedELBO, Tensor, Tensor]:
    """Labels of a nonlinear function of hidden factors, and a model at its start."""
    generator = torch.Generator().manual_seed(seed)
    indices = torch.stack([torch.randint(d, (n,), generator=generator) for d in SHAPE], dim=-1)
    hidden = [torch.randn(d, generator=generator, dtype=torch.float64) for d in SHAPE]
    a, b, c = (table[indices[:, mode]] for mode, table in enumerate(hidden))
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    y = (torch.sin(2.0 * a) * b + c + 0.5 * noise > 0).double()
    mll = build(TrainConfig(method="paper", likelihood="probit", rank=3, inducing=inducing, seed=seed), SHAPE, n)
    mll.lambda_solver = solver
    initialize(mll, indices, y, seed=seed)
    return mll, indices, y


def run(way: str, n: int, inducing: int, budget: int, optimizer: str, seed: int) -> list[tuple[int, float, float]]:
    """Passes, seconds and the best bound so far, at each evaluation, of one of the ``WAYS`` to treat lambda."""
    joint = way.startswith("joint")
    mll, indices, y = problem("newton" if joint else way, n, inducing, seed)
    parameters = list(mll.parameters())
    if joint:
        lam = torch.zeros(inducing, dtype=torch.float64, requires_grad=True)
        whitened = way == "joint, whitened"
        objective = Counted([*parameters, lam], lambda: probit(mll, indices, y, lam, whitened=whitened))
    else:
        objective = Counted(
            parameters,
            lambda: mll(mll.model.train()(indices), y) * n,
            lambda: 2 + (mll.solution.passes if mll.solution else 0),
        )
    objective.climb(optimizer, budget)
    return objective.trace


@click.command(help=__doc__)
@click.option("--entries", "n", default=2000, show_default=True)
@click.option("--inducing", default=50, show_default=True)
@click.option("--budget", default=1000, show_default=True, help="passes over all entries")
@click.option("--optimizer", type=click.Choice(["lbfgs", "gd"]), default="lbfgs", show_default=True)
@click.option("--seeds", default=3, show_default=True)
def main(n: int, inducing: int, budget: int, optimizer: str, seeds: int) -> None:
    """Run all ways from all starts, print where they end, keep the JSON."""
    runs: list[dict[str, Any]] = []
    for seed in range(seeds):
        for way in WAYS:
            trace = run(way, n, inducing, budget, optimizer, seed)
            runs.append({"way": way, "seed": seed, "trace": trace})
            passes, seconds, bound = trace[-1]
            click.echo(f"seed {seed}  {way:15} bound {bound:10.2f} after {passes} passes, {seconds:.1f} s")
    write("joint_lambda", {"entries": n, "inducing": inducing, "budget": budget, "optimizer": optimizer, "runs": runs})


if __name__ == "__main__":
    main()
