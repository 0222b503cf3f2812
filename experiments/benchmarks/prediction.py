"""Mean and variance of q(f) at many entries: ours, and GPyTorch's SVGP with the same q(v), in the same chunks, interleaved.

python experiments/benchmarks/prediction.py [--entries 200000] [--chunk 3000] [--rounds 5]
"""

import click
import common
import torch

from gptf_gpytorch import marginals


@click.command(help=__doc__)
@click.option("--entries", default=200_000, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--chunk", default=3000, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(entries: int, inducing: int, chunk: int, rounds: int) -> None:
    """Measure, print the ratio, keep the JSON."""
    indices, y = common.entries(entries)
    mll = common.problem(indices, y, inducing)
    common.evaluation(mll, indices, y)()
    svgp = mll.model.to_svgp().eval()

    def stock() -> None:
        with torch.no_grad():
            for part in indices.split(chunk):
                q = svgp(part)
                _ = q.mean, q.variance

    subjects = {"ours": lambda: marginals(mll.model, indices, chunk_size=chunk), "GPyTorch SVGP": stock}
    seconds = common.medians(common.interleave({**subjects, "GEMM": common.gemm()}, rounds))
    # One product with p x p for the features, and the distances.
    operations = (2.0 * inducing**2 + 2.0 * inducing * len(common.SHAPE) * common.RANK) * entries
    floor = operations / common.peak(seconds["GEMM"])
    result = {
        "entries": entries,
        "inducing": inducing,
        "chunk": chunk,
        "median seconds": seconds,
        "entries a second": {name: entries / seconds[name] for name in subjects},
        "times the floor": {name: seconds[name] / floor for name in subjects},
        "faster by": seconds["GPyTorch SVGP"] / seconds["ours"],
    }
    click.echo(result)
    common.write("prediction", result)


if __name__ == "__main__":
    main()
