"""How far the explicit form may be trusted: its gradient against the whitened one, over conditioning, noise and N.

The widest condition number at which no gradient differs by more than 1e-9 is what ``EXPLICIT_CONDITION`` may be at most.

python experiments/benchmarks/conditioning.py [--inducing 100]
"""

from itertools import product
from typing import Any

import click
import common
import torch

from gptf_gpytorch import CollapsedELBO
from gptf_gpytorch.variational.paths import workspace
from gptf_gpytorch.variational.stationary import recognise
from gptf_gpytorch.variational.workspace import EXPLICIT_CONDITION, Scratch

TOLERANCE = 1e-9


@click.command(help=__doc__)
@click.option("--inducing", default=100, show_default=True)
def main(inducing: int) -> None:
    """Measure, print, keep the JSON."""
    found: list[dict[str, Any]] = []
    for n, noise in product((2_000, 50_000), (1.0, 1e-2, 2e-4)):
        indices, y = common.entries(n)
        forms = {path: common.problem(indices, y, inducing, path=path) for path in ("whitened", "explicit")}
        for scale in (1.0, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15):
            state = _state(forms["whitened"], indices, scale, noise)
            gradients = {}
            for path, mll in forms.items():
                mll.load_state_dict(state)
                common.evaluation(mll, indices, y)()
                gradients[path] = [parameter.grad.clone() for parameter in mll.parameters()]
            pairs = zip(gradients["explicit"], gradients["whitened"], strict=True)
            error = max(float((mine - exact).norm() / exact.norm()) for mine, exact in pairs)
            condition = _condition(forms["whitened"])
            found.append({"entries": n, "noise": noise, "scale": scale, "condition": condition, "error": error})
            click.echo(f"N {n}  noise {noise:g}  scale {scale:g}  condition {condition:.1e}  error {error:.1e}")
    bad = min((row["condition"] for row in found if row["error"] > TOLERANCE), default=float("inf"))
    widest = max(row["condition"] for row in found if row["condition"] < bad)
    click.echo(f"within {TOLERANCE:g} up to a condition number of {widest:.1e}; the limit is {EXPLICIT_CONDITION:g}")
    common.write("conditioning", {"tolerance": TOLERANCE, "widest": widest, "limit": EXPLICIT_CONDITION, "runs": found})


def _state(mll: CollapsedELBO, indices: torch.Tensor, scale: float, noise: float) -> dict[str, Any]:
    """Factors of that scale, inducing points among the entries, that noise."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for table in mll.model.factors.weights:
            table.copy_(scale * torch.randn(table.shape, generator=generator, dtype=table.dtype))
        points = mll.strategy.inducing_points
        points.copy_(mll.model.factors(indices[torch.randperm(len(indices), generator=generator)[: len(points)]]))
        mll.likelihood.noise = noise
    return mll.state_dict()


def _condition(mll: CollapsedELBO) -> float:
    _, L = mll.strategy.factor(may_raise_jitter=False)
    prior = recognise(mll.model, mll.strategy.inducing_points)
    assert prior is not None  # noqa: S101
    return workspace(prior, L, Scratch()).condition


if __name__ == "__main__":
    main()
