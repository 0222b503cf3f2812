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

    seconds = common.medians(
        common.interleave(
            {"ours": lambda: marginals(mll.model, indices, chunk_size=chunk), "GPyTorch SVGP": stock}, rounds
        )
    )
    result = {
        "entries": entries,
        "inducing": inducing,
        "chunk": chunk,
        "median seconds": seconds,
        "entries a second": {name: entries / value for name, value in seconds.items()},
        "faster by": seconds["GPyTorch SVGP"] / seconds["ours"],
    }
    click.echo(result)
    common.write("prediction", result)


if __name__ == "__main__":
    main()
