"""The operations that a block of the fused map is made of, each alone on one thread: what the parts cost in floors.

python experiments/benchmarks/primitives.py [--block 496] [--inducing 100] [--rounds 60]
"""

from collections.abc import Callable
from typing import Any

import click
import common
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from gptf_gpytorch.variational import native


@click.command(help=__doc__)
@click.option("--block", default=496, show_default=True)
@click.option("--inducing", default=100, show_default=True)
@click.option("--rounds", default=60, show_default=True)
def main(block: int, inducing: int, rounds: int) -> None:
    """Measure, print, keep the JSON."""
    torch.set_num_threads(1)
    n, p, rng = block, inducing, np.random.default_rng(0)
    K, out, x = rng.random((p, n)), np.empty((p, n)), rng.standard_normal((12, n))
    square, triangle, gram = rng.standard_normal((p, p)), np.tril(rng.standard_normal((p, p))), np.zeros((p, p))
    B, to_b, to_x = rng.standard_normal((p, 12)), np.zeros((p, 12)), np.empty((12, n))
    tall, tall_out = torch.rand(n, p, dtype=torch.float64), torch.empty(n, p, dtype=torch.float64)
    K_t, out_t, square_t, L_t = (torch.from_numpy(array) for array in (K, out, square, triangle))
    subjects: dict[str, Callable[[], object]] = {
        "what the loops call: distances": lambda: native.gemm(B, x, out, False, False, 0.0),
        "what the loops call: exponential": lambda: native.exp(out.reshape(-1)),
        "what the loops call: L^-1 K": lambda: native.whiten(triangle, K, out),
        "what the loops call: w w'": lambda: native.gram(K, gram),
        "what the loops call: S K": lambda: native.gemm(square, K, out, False, False, 0.0),
        "what the loops call: E x": lambda: native.gemm(K, x, to_b, False, True, 1.0),
        "what the loops call: b E": lambda: native.gemm(B.T.copy(), K, to_x, False, False, 0.0),
        "else: S K as [n, p]": lambda: torch.mm(tall, square_t, out=tall_out),
        "else: triangular solve": lambda: torch.linalg.solve_triangular(L_t, K_t, upper=False),
        "else: w w' in torch": lambda: torch.mm(K_t, K_t.T),
        "else: w w' in NumPy (syrk)": lambda: np.matmul(K, K.T),
        "else: exponential in torch": lambda: torch.exp(K_t, out=out_t),
        "GEMM": common.gemm(),
    }
    with threadpool_limits(1, user_api="blas"):
        seconds = common.medians(common.interleave(subjects, rounds))
    floor = common.floor(n, p, seconds["GEMM"])
    result: dict[str, Any] = {
        "block": n,
        "inducing": p,
        "threads": 1,
        "floor of a block, microseconds": 1e6 * floor,
        "times the floor": {name: value / floor for name, value in seconds.items() if name != "GEMM"},
    }
    click.echo(result)
    common.write("primitives", result)


if __name__ == "__main__":
    main()
