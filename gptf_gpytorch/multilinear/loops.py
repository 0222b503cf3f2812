"""The sums and draws of :mod:`reference`, compiled. Each call takes a range of entities or entries and needs no interpreter."""

from typing import Any

import numba
import numpy as np

_FLAGS = {"nsz", "reassoc", "contract"}


@numba.njit(nogil=True, cache=True, fastmath=_FLAGS, inline="always")
def _slope(rows: Any, table: Any, skip: Any, pairs: Any, h: Any) -> None:  # pragma: no cover
    """The slopes h `[D]`: the derivative of f with respect to the row of mode ``skip``."""
    columns = table.shape[1]
    h[0] = 1.0
    for c in range(1, 1 + pairs):
        h[c] = 0.0
    for c in range(1 + pairs, columns):
        h[c] = 1.0
    for mode in range(rows.shape[0]):
        if mode != skip:
            row = rows[mode]
            for c in range(1, 1 + pairs):
                h[c] += table[row, c]
            for c in range(1 + pairs, columns):
                h[c] *= table[row, c]


@numba.njit(nogil=True, cache=True, fastmath=_FLAGS)
def statistics(
    order: Any,
    starts: Any,
    rows: Any,
    first: Any,
    end: Any,
    table: Any,
    skip: Any,
    pairs: Any,
    weights: Any,
    residual: Any,
    S: Any,
    t: Any,
) -> None:  # pragma: no cover
    """For entities ``first`` to ``end - 1``: S `[a, D(D+1)/2]`, the sum of o h h' (lower triangle), t `[a, D]`, of o h e."""
    columns = table.shape[1]
    h = np.empty((4, columns))
    oh = np.empty((4, columns))
    for i in range(first, end):
        for c in range(S.shape[1]):
            S[i, c] = 0.0
        for c in range(columns):
            t[i, c] = 0.0
        j = starts[i]
        while j < starts[i + 1]:
            m = min(4, starts[i + 1] - j)
            for k in range(m):
                entry = order[j + k]
                _slope(rows[j + k], table, skip, pairs, h[k])
                o = 1.0 if weights.size == 0 else weights[entry]
                oe = o * residual[entry]
                for c in range(columns):
                    t[i, c] += oe * h[k, c]
                    oh[k, c] = o * h[k, c]
            place = 0
            if m == 4:
                for a in range(columns):
                    p, q, r, s = oh[0, a], oh[1, a], oh[2, a], oh[3, a]
                    for b in range(a + 1):
                        S[i, place + b] += p * h[0, b] + q * h[1, b] + r * h[2, b] + s * h[3, b]
                    place += a + 1
            else:
                for a in range(columns):
                    for k in range(m):
                        p = oh[k, a]
                        for b in range(a + 1):
                            S[i, place + b] += p * h[k, b]
                    place += a + 1
            j += m


@numba.njit(nogil=True, cache=True, fastmath=_FLAGS)
def draw(
    first: Any, end: Any, S: Any, t: Any, beta: Any, T: Any, Tm: Any, noise: Any, old: Any, new: Any
) -> Any:  # pragma: no cover
    """Rows of entities ``first`` to ``end - 1``: N(P^-1 b, P^-1), P = T + beta S, b = T m + beta (t + S w). -1, or who failed."""
    columns = old.shape[1]
    L = np.empty((columns, columns))
    x = np.empty(columns)
    for i in range(first, end):
        place = 0
        for a in range(columns):
            x[a] = t[i, a]
        for a in range(columns):
            for b in range(a):
                value = S[i, place + b]
                L[a, b] = T[a, b] + beta * value
                x[a] += value * old[i, b]
                x[b] += value * old[i, a]
            value = S[i, place + a]
            L[a, a] = T[a, a] + beta * value
            x[a] += value * old[i, a]
            place += a + 1
        for a in range(columns):
            x[a] = Tm[a] + beta * x[a]
        for a in range(columns):
            for b in range(a):
                value = L[a, b]
                for c in range(b):
                    value -= L[a, c] * L[b, c]
                L[a, b] = value / L[b, b]
            value = L[a, a]
            for c in range(a):
                value -= L[a, c] * L[a, c]
            if not value > 0.0:
                return i
            L[a, a] = np.sqrt(value)
        for a in range(columns):
            value = x[a]
            for c in range(a):
                value -= L[a, c] * x[c]
            x[a] = value / L[a, a]
        for a in range(columns):
            x[a] += noise[i, a]
        for a in range(columns - 1, -1, -1):
            x[a] /= L[a, a]
            value = x[a]
            for c in range(a):
                x[c] -= L[a, c] * value
            new[i, a] = value
    return -1


@numba.njit(nogil=True, cache=True, fastmath=_FLAGS)
def shift(
    order: Any,
    starts: Any,
    rows: Any,
    first: Any,
    end: Any,
    table: Any,
    skip: Any,
    pairs: Any,
    change: Any,
    residual: Any,
) -> None:  # pragma: no cover
    """Take the change of the rows of entities ``first`` to ``end - 1`` off the residuals of their entries."""
    columns = table.shape[1]
    h = np.empty(columns)
    for i in range(first, end):
        for j in range(starts[i], starts[i + 1]):
            _slope(rows[j], table, skip, pairs, h)
            value = 0.0
            for c in range(columns):
                value += change[i, c] * h[c]
            residual[order[j]] -= value


@numba.njit(nogil=True, cache=True, fastmath=_FLAGS)
def values(rows: Any, first: Any, end: Any, table: Any, pairs: Any, f: Any) -> None:  # pragma: no cover
    """Biases, pairs and products of entries ``first`` to ``end - 1`` with stacked rows `[n, K]`."""
    columns = table.shape[1]
    for j in range(first, end):
        value = 0.0
        for mode in range(rows.shape[1]):
            value += table[rows[j, mode], 0]
        for c in range(1, 1 + pairs):
            total = 0.0
            squares = 0.0
            for mode in range(rows.shape[1]):
                v = table[rows[j, mode], c]
                total += v
                squares += v * v
            value += 0.5 * (total * total - squares)
        for c in range(1 + pairs, columns):
            product = 1.0
            for mode in range(rows.shape[1]):
                product *= table[rows[j, mode], c]
            value += product
        f[j] = value
