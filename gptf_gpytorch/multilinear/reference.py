"""The sums and draws of a sweep in plain torch: what :mod:`loops` computes, in the formulas of the model.

The value of an entry is linear in the row w of one of its entities: f = w'h + rest, with h = [1, sum of the other modes' v,
product of the other modes' u].
"""

import torch
from torch import Tensor

from gptf_gpytorch.errors import NumericalError
from gptf_gpytorch.multilinear.layout import Grouped

# Entries whose h h' are in memory at a time.
_CHUNK = 20_000


def slopes(rows: Tensor, table: Tensor, mode: int, pairs: int) -> Tensor:
    """The slopes h `[n, D]` of entries with stacked rows `[n, K]`: the derivative of f with respect to the row of a mode."""
    others = [table[column.long()] for place, column in enumerate(rows.T) if place != mode]
    factors = torch.stack(others)  # [K - 1, n, D]
    h = torch.ones_like(factors[0])
    h[:, 1 : 1 + pairs] = factors[:, :, 1 : 1 + pairs].sum(0)
    h[:, 1 + pairs :] = factors[:, :, 1 + pairs :].prod(0)
    return h


def statistics(
    grouped: Grouped, table: Tensor, mode: int, pairs: int, weights: Tensor | None, residual: Tensor
) -> tuple[Tensor, Tensor]:
    """Of each entity, the lower triangle of the sum of o h h' `[a, D(D+1)/2]`, and the sum of o h e `[a, D]`."""
    entities, D = len(grouped.starts) - 1, table.size(1)
    entity = torch.repeat_interleave(torch.arange(entities), grouped.starts.diff())
    below = torch.tril_indices(D, D)
    S, t = table.new_zeros(entities, below.size(1)), table.new_zeros(entities, D)
    for start in range(0, len(entity), _CHUNK):
        part = slice(start, start + _CHUNK)
        order = grouped.order[part].long()
        h = slopes(grouped.rows[part], table, mode, pairs)
        oh = h if weights is None else weights[order, None] * h
        S.index_add_(0, entity[part], oh[:, below[0]] * h[:, below[1]])
        t.index_add_(0, entity[part], oh * residual[order, None])
    return S, t


def draw(S: Tensor, t: Tensor, beta: float, T: Tensor, m: Tensor, noise: Tensor, old: Tensor) -> Tensor:
    """Rows `[a, D]` from N(P^-1 (T m + beta (t + S w)), P^-1), P = T + beta S, w the old ones."""
    D = old.size(1)
    below = torch.tril_indices(D, D)
    full = S.new_zeros(len(S), D, D)
    full[:, below[0], below[1]] = S
    full[:, below[1], below[0]] = S
    b = T @ m + beta * (t + (full @ old[:, :, None])[:, :, 0])
    L, info = torch.linalg.cholesky_ex(T + beta * full)
    if bool(info.any()):
        raise failed(int(info.nonzero()[0]))
    x = torch.linalg.solve_triangular(L, b[:, :, None], upper=False) + noise[:, :, None]
    rows: Tensor = torch.linalg.solve_triangular(L.mT, x, upper=True)[:, :, 0]
    return rows


def shift(grouped: Grouped, table: Tensor, mode: int, pairs: int, change: Tensor, residual: Tensor) -> None:
    """Take the change `[a, D]` of the rows of a mode off the residuals of their entries."""
    entity = torch.repeat_interleave(torch.arange(len(change)), grouped.starts.diff())
    h = slopes(grouped.rows, table, mode, pairs)
    residual[grouped.order.long()] -= (change[entity] * h).sum(1)


def values(rows: Tensor, table: Tensor, pairs: int) -> Tensor:
    """Biases, pairs and products `[n]` of entries with stacked rows `[n, K]`."""
    factors = table[rows.long()]  # [n, K, D]
    v, u = factors[:, :, 1 : 1 + pairs], factors[:, :, 1 + pairs :]
    # sum_{k<l} v_k . v_l = (|sum_k v_k|^2 - sum_k |v_k|^2) / 2
    pair_part = 0.5 * (v.sum(1).square().sum(1) - v.square().sum((1, 2)))
    return factors[:, :, 0].sum(1) + pair_part + u.prod(1).sum(1)


def failed(entity: int) -> NumericalError:
    """No draw of a row is possible."""
    return NumericalError(
        f"The precision of the row of entity {entity} must have a Cholesky factor. Got one that is not positive definite: "
        "a value or a weight may be too large; standardise the values, or take smaller ranks."
    )
