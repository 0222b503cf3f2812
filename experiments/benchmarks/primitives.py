"""The operations that a chunk of the fused map is made of, each alone on one thread: what the parts would cost at best.

python experiments/benchmarks/primitives.py [--chunk 2048] [--inducing 100] [--rounds 40]
"""

from typing import Any

import click
import common
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from gptf_gpytorch.variational.workspace import Triangle


@click.command(help=__doc__)
@click.option("--chunk", default=2048, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=40, show_default=True)
def main(chunk: int, inducing: int, rounds: int) -> None:
    """Measure, print, keep the JSON."""
    torch.set_num_threads(1)
    n, p = chunk, inducing
    double: dict[str, Any] = {"dtype": torch.float64}
    tall, wide = torch.rand(n, p, **double), torch.rand(p, n, **double)
    tall_out, wide_out = torch.empty_like(tall), torch.empty_like(wide)
    square = torch.randn(p, p, **double)
    L = torch.linalg.cholesky(square @ square.T + p * torch.eye(p, **double))
    triangle = Triangle(L)
    twelve, array = torch.randn(12, n, **double), wide.numpy()
    subjects = {
        "GEMM": common.gemm(),
        "product, [n, p] layout": lambda: torch.mm(tall, square, out=tall_out),
        "product, [p, n] layout": lambda: torch.mm(square, wide, out=wide_out),
        "triangular product by blocks, [p, n]": lambda: triangle.mm(wide, wide_out),
        "triangular solve, [p, n]": lambda: torch.linalg.solve_triangular(L, wide, upper=False),
        "w w' in torch": lambda: torch.mm(wide, wide.T),
        "w w' in NumPy (syrk)": lambda: np.matmul(array, array.T),
        "E x, 12 columns": lambda: torch.mm(wide, twelve.T),
        "exp": lambda: torch.exp(wide, out=wide_out),
    }
    with threadpool_limits(1, user_api="blas"):
        seconds = common.medians(common.interleave(subjects, rounds))
    result = {
        "chunk": n,
        "inducing": p,
        "threads": 1,
        "median microseconds": {name: 1e6 * value for name, value in seconds.items()},
        "floor of a chunk, microseconds": 1e6 * common.floor(n, p, seconds["GEMM"]),
    }
    click.echo(result)
    common.write("primitives", result)


if __name__ == "__main__":
    main()
