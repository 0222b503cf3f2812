"""A small tensor that training is tried on."""

import torch

from gptf_gpytorch.data import TensorEntries


def make_entries(n: int = 900, *, binary: bool = False, seed: int = 0) -> TensorEntries:
    generator = torch.Generator().manual_seed(seed)
    shape = (15, 12, 10)
    hidden = [torch.randn(d, generator=generator, dtype=torch.float64) for d in shape]
    cells = torch.cartesian_prod(*(torch.arange(d) for d in shape))
    cells = cells[torch.randperm(len(cells), generator=generator)[:n]]
    a, b, c = (table[cells[:, mode]] for mode, table in enumerate(hidden))
    f = torch.sin(2.0 * a) * b + c
    noise = torch.randn(n, generator=generator, dtype=torch.float64)
    values = (f + 0.3 * noise > 0).double() if binary else 100.0 + 20.0 * (f + 0.1 * noise)
    return TensorEntries(cells, values, shape=shape, names=("user", "item", "day"))
