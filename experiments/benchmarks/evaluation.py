"""One evaluation of the bound and its gradient: ours, the peers and the GEMM floor, interleaved in one run.

python experiments/benchmarks/evaluation.py [--entries 200000] [--inducing 100] [--rounds 3]

Before it is timed, each peer must agree with ours in the bound and in the gradient.
"""

from collections.abc import Callable
from typing import Any

import click
import common
import peers
import torch
import torch._dynamo  # torch's optimisers import it when they are first used; after TensorFlow, two LLVMs would collide

# Relative, norm-wise for the gradient, which has fewer digits than the bound where K_BB is nearly singular.
TOLERANCE = 1e-6


@click.command(help=__doc__)
@click.option("--entries", default=200_000, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=3, show_default=True)
def main(entries: int, inducing: int, rounds: int) -> None:
    """Measure, print ratios, keep the JSON."""
    indices, y = common.entries(entries)
    labels = common.entries(entries, binary=True)[1]
    found, missing = peers.available()
    if missing:
        click.echo(f"Without {' and '.join(missing)}: pip install -e '.[peers]' adds what is missing.")
    result: dict[str, Any] = {
        "entries": entries,
        "inducing": inducing,
        "dimensions": len(common.SHAPE) * common.RANK,
        "rounds": rounds,
        "missing peers": missing,
        "states": {},
    }
    ours = {path: common.problem(indices, y, inducing, path=path) for path in ("auto", "whitened", "explicit")}
    probit = common.problem(indices, labels, inducing, binary=True)
    for state in ("start", "after 50 L-BFGS steps"):
        if state != "start":
            _train(ours["auto"], indices, y)
            _train(probit, indices, labels)
            for mll in ours.values():
                mll.load_state_dict(ours["auto"].state_dict())
        subjects: dict[str, Callable[[], object]] = {
            f"ours, {path}": common.evaluation(mll, indices, y) for path, mll in ours.items()
        }
        subjects["ours, probit, warm lambda"] = _moving(probit, indices, labels)
        others = {name: peer(ours["auto"], indices, y) for name, peer in found.items()}
        errors = _agreement(others, peers.ours(ours["auto"], indices, y))
        subjects.update(others)
        subjects["GEMM"] = common.gemm()
        quick = [name for name in subjects if name.startswith("ours")] + ["GEMM"]
        seconds = common.interleave(subjects, rounds, quick=quick, times=5)
        median = common.medians(seconds)
        # On a machine that others share, like is compared with like: the median with the median, the fastest with the
        # fastest.
        floor = common.floor(entries, inducing, median["GEMM"])
        fastest = common.floor(entries, inducing, min(seconds["GEMM"]))
        result["states"][state] = {
            "path of auto": ours["auto"].strategy.path,
            "lambda passes": probit.solution.passes if probit.solution else None,
            "median seconds": median,
            "GEMM floor seconds": floor,
            "times the floor": {name: median[name] / floor for name in quick[:-1]},
            "fastest times the fastest floor": {name: min(seconds[name]) / fastest for name in quick[:-1]},
            "median times the fastest floor": {name: median[name] / fastest for name in quick[:-1]},
            "auto is faster by": {name: median[name] / median["ours, auto"] for name in others},
            "relative difference of bound and gradient": errors,
            "probit against gaussian": median["ours, probit, warm lambda"] / median["ours, auto"],
        }
        click.echo(f"{state}: {result['states'][state]}")
    common.write("evaluation", result)


def _agreement(others: dict[str, peers.Run], ours: peers.Run) -> dict[str, tuple[float, float]]:
    """How far each peer is from ours; an error if that is further than rounding."""
    errors = {}
    for name, run in others.items():
        found = peers.detached(run())
        errors[name] = peers.difference(found, ours())
        if not max(errors[name]) < TOLERANCE:
            raise click.ClickException(
                f"Every peer must agree with ours to {TOLERANCE:g}, in the bound and in the gradient. "
                f"Got {errors[name]} from {name}."
            )
    return errors


def _train(mll: Any, indices: torch.Tensor, y: torch.Tensor) -> None:
    optimizer = torch.optim.LBFGS(mll.parameters(), max_iter=50, max_eval=100, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = -mll(mll.model.train()(indices), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def _moving(mll: Any, indices: torch.Tensor, y: torch.Tensor) -> Any:
    """A probit evaluation after a small step, as in training: lambda has to be found again, from the last one."""
    run = common.evaluation(mll, indices, y)
    generator = torch.Generator().manual_seed(0)
    tables = list(mll.model.factors.weights)
    steps = [1e-3 * torch.randn(table.shape, generator=generator, dtype=table.dtype) for table in tables]

    def moved() -> None:
        with torch.no_grad():
            for table, step in zip(tables, steps, strict=True):
                table.add_(step)
                step.neg_()  # there and back again: many small steps would lead far away
        run()

    return moved


if __name__ == "__main__":
    main()
