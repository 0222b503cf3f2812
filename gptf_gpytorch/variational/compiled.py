"""The inner loops of the fused map, compiled with Numba: a chunk's way there and its way back are one call each.

What a chunk needs in torch is some 70 calls; each takes the interpreter's lock and passes over memory once. Here the
matrix products are the BLAS that SciPy ships (through ``numpy.dot``), everything between them is one pass, and no lock
is held. Only float64 on a CPU; everything else takes torch.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational.statistics import EntryChunk
from gptf_gpytorch.variational.workspace import Features, Pulled, Triangle, Workspace

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first times an integer below 2^11 is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: a number added to it is rounded to an integer, kept in the lowest bits
_LOWEST = -708.0  # below this, exp is subnormal
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(14))
_NOTHING = np.empty((0, 0))


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _exp_mantissa(values: Any, shifted: Any) -> None:
    """exp(r) of r = v - k ln 2 in place of v, |r| <= ln 2 / 2, and k in the lowest bits of ``shifted``."""
    for i in range(values.size):
        v = values[i]
        v = _LOWEST if v < _LOWEST else v  # NaN stays
        z = v * _LOG2_E + _ROUND
        shifted[i] = z
        k = z - _ROUND
        r = (v - k * _LN2_HIGH) - k * _LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        low = (_TAYLOR[0] + _TAYLOR[1] * r) + r2 * (_TAYLOR[2] + _TAYLOR[3] * r)
        middle = (_TAYLOR[4] + _TAYLOR[5] * r) + r2 * (_TAYLOR[6] + _TAYLOR[7] * r)
        high = (_TAYLOR[8] + _TAYLOR[9] * r) + r2 * (_TAYLOR[10] + _TAYLOR[11] * r)
        top = _TAYLOR[12] + _TAYLOR[13] * r
        values[i] = (low + r4 * middle) + (r4 * r4) * (high + r4 * top)


@njit(nogil=True, cache=True)
def _times_power_of_two(bits: Any, shifted: Any) -> None:
    """Add k to the exponents."""
    for i in range(bits.size):
        bits[i] += shifted[i] << 52


@njit(nogil=True, cache=True)
def exp_(values: Any, shifted: Any) -> None:
    """The exponential in place, to 2 units in the last place; ``shifted`` is scratch of any size above 0."""
    step = shifted.size
    for start in range(0, values.size, step):
        part = values[start : min(start + step, values.size)]
        scratch = shifted[: part.size]
        _exp_mantissa(part, scratch)
        _times_power_of_two(part.view(np.int64), scratch.view(np.int64))


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _distance(half: Any, r: Any, root: float) -> None:
    """The distance r, and -root r, in place of minus half its square."""
    for i in range(half.size):
        square = -2.0 * half[i]
        r[i] = math.sqrt(1e-30 if square < 1e-30 else square)
        half[i] = -root * r[i]


@njit(nogil=True, cache=True, fastmath={"contract"}, error_model="numpy")
def _matern_values(decay: Any, r: Any, slope: Any, twice_nu: int, scale: float) -> None:
    """The kernel's values in place of exp(-root r), and H where it is wanted."""
    root = math.sqrt(twice_nu)
    for i in range(decay.size):
        e, linear = scale * decay[i], 1.0 + root * r[i]
        if twice_nu == 1:
            value, h = e, e / r[i]
        elif twice_nu == 3:
            value, h = e * linear, 3.0 * e
        else:
            value, h = e * (linear + (5.0 / 3.0) * r[i] * r[i]), e * (5.0 / 3.0) * linear
        decay[i] = value
        if slope.size:
            slope[i] = h


@njit(nogil=True, cache=True)
def _triangle(flat: Any, edges: Any, upper: bool, right: Any, out: Any) -> None:
    """The product of :class:`Triangle`, from its parts one after the other."""
    p, place = out.shape[0], 0
    for block in range(edges.size - 1):
        first, last = edges[block], edges[block + 1]
        start, stop = (first, p) if upper else (0, last)
        size = (last - first) * (stop - start)
        part = flat[place : place + size].reshape(last - first, stop - start)
        np.dot(part, right[start:stop], out[first:last])
        place += size


@njit(nogil=True, cache=True)
def _gather(flat: Any, ranks: Any, starts: Any, indices: Any, x: Any) -> None:
    """Rows of the tables, which lie flat one after the other, into the first rows of x."""
    first = 0
    for mode in range(ranks.size):
        rank = ranks[mode]
        for j in range(indices.shape[0]):
            place = starts[mode] + indices[j, mode] * rank
            for d in range(rank):
                x[first + d, j] = flat[place + d]
        first += rank


@njit(nogil=True, cache=True, fastmath={"contract"})
def _augment(x: Any, D: int) -> None:
    """Below the rows of x: 1, -|x|^2 / 2 and 0."""
    x[D] = 1.0
    square = x[D + 1]
    square[:] = 0.0
    for d in range(D):
        row = x[d]
        for j in range(row.size):
            square[j] -= 0.5 * row[j] * row[j]
    x[D + 2 :] = 0.0


@njit(nogil=True, cache=True)
def _fill(
    D: int,
    B_aug: Any,
    twice_nu: int,
    scale: float,
    lower: Any,
    edges: Any,
    x: Any,
    K: Any,
    H: Any,
    w: Any,
    scratch: Any,
) -> None:
    _augment(x, D)
    np.dot(B_aug, x, K)
    for i in range(K.shape[0]):
        row = K[i]
        if twice_nu == 0:
            exp_(row, scratch[0])
        else:
            r = scratch[1, : row.size]
            _distance(row, r, math.sqrt(twice_nu))
            exp_(row, scratch[0])
            _matern_values(row, r, H[i] if H.size else H.reshape(-1), twice_nu, scale)
    if w.size:
        _triangle(lower, edges, False, K, w)


@njit(nogil=True, cache=True, fastmath={"contract"})
def _add_outer(matrix: Any, column: Any, row: Any) -> None:
    for i in range(matrix.shape[0]):
        target, factor = matrix[i], column[i]
        for j in range(target.size):
            target[j] += factor * row[j]


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def _weigh(K_bar: Any, factor: float, row: Any, H: Any, K: Any, weights: Any, wants_scale: bool) -> float:
    """E = (K_bar + factor row) * H * v in place of K_bar; the sum of K_bar * K * v where it is wanted."""
    total = 0.0
    if not weights.size and not wants_scale:
        for j in range(K_bar.size):
            K_bar[j] = (K_bar[j] + factor * row[j]) * H[j]
        return total
    for j in range(K_bar.size):
        K_bar[j] += factor * row[j]
    if weights.size:
        for j in range(K_bar.size):
            K_bar[j] *= weights[j]
    if wants_scale:
        for j in range(K_bar.size):
            total += K_bar[j] * K[j]
    for j in range(K_bar.size):
        K_bar[j] *= H[j]
    return total


@njit(nogil=True, cache=True, fastmath={"contract"})
def _unscale(to_x: Any, x: Any, lengthscale: Any, dx: Any, dx_x: Any) -> None:
    """The gradient of the points `[n, D]`, and the sum over them of that of x times x."""
    n, D = dx.shape
    for d in range(D):
        total = 0.0
        for j in range(n):
            value = to_x[d, j] - to_x[D, j] * x[d, j]
            total += value * x[d, j]
            dx[j, d] = value / lengthscale[d]
        dx_x[d] = total


@njit(nogil=True, cache=True)
def _back(
    left: Any,
    column: Any,
    row: Any,
    upper: Any,
    edges: Any,
    x: Any,
    K: Any,
    H: Any,
    w: Any,
    weights: Any,
    b_ones: Any,
    lengthscale: Any,
    wants_scale: bool,
    w_bar: Any,
    K_bar: Any,
    to_x: Any,
    to_b: Any,
    dx: Any,
    dx_x: Any,
) -> float:
    total = 0.0
    if w_bar.size:
        np.dot(left, w, w_bar)
        _add_outer(w_bar, column, row)
        _triangle(upper, edges, True, w_bar, K_bar)
    else:
        np.dot(left, K, K_bar)
    for i in range(K_bar.shape[0]):
        factor = 0.0 if w_bar.size else column[i]
        total += _weigh(K_bar[i], factor, row, H[i], K[i], weights, wants_scale)
    np.dot(K_bar, x.T, to_b)
    np.dot(b_ones, K_bar, to_x)
    _unscale(to_x, x, lengthscale, dx, dx_x)
    return total


@njit(nogil=True, cache=True, fastmath={"contract"})
def _square_norms(left: Any, K: Any, product: Any, norms: Any) -> None:
    np.dot(left, K, product)
    norms[:] = 0.0
    for i in range(product.shape[0]):
        row = product[i]
        for j in range(row.size):
            norms[j] += row[j] * row[j]


class CompiledWorkspace(Workspace):
    """A :class:`Workspace` whose loops are compiled."""

    def __init__(self, *where: Any, **options: Any) -> None:
        super().__init__(*where, **options)
        self._twice_nu = round(2.0 * self.prior.nu) if self.prior.slope_differs else 0
        self._lengthscale = self.lengthscale.contiguous().numpy()
        self._flat_lower, self._edges = _flatten(self._lower)
        self._flat_upper, _ = _flatten(self._upper)
        self._tables: tuple[Any, Any, Any] | None = None

    @property
    def path(self) -> str:
        """The path in words."""
        return f"{super().path}, compiled"

    def _fill(self, chunk: EntryChunk, x: Tensor, K: Tensor, H: Tensor | None, w: Tensor | None) -> None:
        array, D = x.numpy(), self.D
        if chunk.shard.factors is None:
            torch.div(chunk.gather().T, self.lengthscale[:, None], out=x[:D]).sub_(self.centre[:, None])
        else:
            _gather(*self._scaled(chunk.shard.factors), chunk.indices.numpy(), array)
        _fill(
            D,
            self.B_aug.numpy(),
            self._twice_nu,
            self.outputscale,
            self._flat_lower,
            self._edges,
            array,
            K.numpy(),
            _NOTHING if H is None else H.numpy(),
            _NOTHING if w is None else w.numpy(),
            self.buffer("scratch", 2, x.size(-1)).numpy(),
        )

    def _scaled(self, factors: LatentFactors) -> tuple[Any, Any, Any]:
        """The tables, scaled and centred once for all entries, with their ranks and where each starts."""
        if self._tables is None:
            ranks, flat = list(factors.ranks), []
            parts = zip(factors.weights, self.lengthscale.split(ranks), self.centre.split(ranks), strict=True)
            for table, lengthscale, centre in parts:
                flat.append((table.detach() / lengthscale - centre).reshape(-1))
            starts = np.cumsum([0, *(part.numel() for part in flat)])[:-1]
            self._tables = torch.cat(flat).numpy(), np.array(ranks), starts
        return self._tables

    def back(self, found: Features, left: Tensor, column: Tensor, row: Tensor, weights: Tensor | None) -> Pulled:
        """See :meth:`Workspace.back`."""
        assert found.H is not None  # noqa: S101 the way back asks for it
        p, n = self.p, row.numel()
        to_b, dx, dx_x = np.empty((p, self.columns)), np.empty((n, self.D)), np.empty(self.D)
        total = _back(
            left.numpy(),
            column.numpy(),
            row.numpy(),
            self._flat_upper,
            self._edges,
            found.x.numpy(),
            found.K.numpy(),
            found.H.numpy(),
            _NOTHING if found.w is None else found.w.numpy(),
            np.empty(0) if weights is None else weights.contiguous().numpy(),
            self.b_ones.numpy(),
            self._lengthscale,
            self.prior.slope_differs,
            _NOTHING if self.explicit else self.buffer("w_bar", p, n).numpy(),
            self.buffer("K_bar", p, n).numpy(),
            self.buffer("to_x", self.columns, n).numpy(),
            to_b,
            dx,
            dx_x,
        )
        gradient = torch.from_numpy(to_b)
        d_scale = left.new_tensor(total) if self.prior.slope_differs else gradient[:, self.D].sum()
        return Pulled(gradient, torch.from_numpy(dx), torch.from_numpy(dx_x), d_scale)

    def square_norms(self, left: Tensor, K: Tensor) -> Tensor:
        """See :meth:`Workspace.square_norms`."""
        norms, product = K.new_empty(K.size(-1)), self.buffer("product", len(left), K.size(-1))
        _square_norms(left.numpy(), K.numpy(), product.numpy(), norms.numpy())
        return norms


def _flatten(triangle: Triangle) -> tuple[Any, Any]:
    """The parts of a triangle one after the other, and the edges between their rows."""
    edges = [0, *(rows.stop for rows, _, _ in triangle.parts)]
    return torch.cat([part.reshape(-1) for _, _, part in triangle.parts]).numpy(), np.array(edges)
