"""The inner loops of the fused map, compiled with Numba: everything between two matrix products is one call.

In torch that takes several calls, each of which passes over memory once and takes the interpreter's lock twice. The
products themselves stay torch's. Only for float64 on a CPU.
"""

import math
from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational.statistics import EntryChunk
from gptf_gpytorch.variational.workspace import Features, Workspace

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first times an integer below 2^11 is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: a number added to it is rounded to an integer, kept in the lowest bits
_LOWEST = -708.0  # below this, exp is subnormal
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(14))
_NOTHING, _NO_WEIGHTS = np.empty((0, 0)), np.empty(0)


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


@njit(nogil=True, cache=True, fastmath={"contract"})
def _gather(flat: Any, ranks: Any, starts: Any, indices: Any, x: Any) -> None:
    """Rows of the tables, which lie flat one after the other, as columns of x; below them 1, -|x|^2 / 2 and 0."""
    D = 0
    for mode in range(ranks.size):
        rank = ranks[mode]
        for j in range(indices.shape[0]):
            place = starts[mode] + indices[j, mode] * rank
            for d in range(rank):
                x[D + d, j] = flat[place + d]
        D += rank
    x[D] = 1.0
    x[D + 1 :] = 0.0
    square = x[D + 1]
    for d in range(D):
        row = x[d]
        for j in range(row.size):
            square[j] -= 0.5 * row[j] * row[j]


@njit(nogil=True, cache=True)
def _kernel(K: Any, H: Any, twice_nu: int, scale: float, scratch: Any) -> None:
    """The kernel's values in place of minus half the squared distances; for Matern also H, unless it is empty."""
    for i in range(K.shape[0]):
        row = K[i]
        if twice_nu == 0:
            exp_(row, scratch[0])
        else:
            _distance(row, scratch[1], math.sqrt(twice_nu))
            exp_(row, scratch[0])
            _matern_values(row, scratch[1], H[i] if H.size else H.reshape(-1), twice_nu, scale)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def _weigh_row(K_bar: Any, factor: float, row: Any, H: Any, K: Any, weights: Any, wants_total: bool) -> float:
    total = 0.0
    if not weights.size and not wants_total:
        for j in range(K_bar.size):
            K_bar[j] = (K_bar[j] + factor * row[j]) * H[j]
        return total
    for j in range(K_bar.size):
        K_bar[j] += factor * row[j]
    if weights.size:
        for j in range(K_bar.size):
            K_bar[j] *= weights[j]
    for j in range(K_bar.size):
        total += K_bar[j] * K[j]
    for j in range(K_bar.size):
        K_bar[j] *= H[j]
    return total


@njit(nogil=True, cache=True)
def _weigh(K_bar: Any, column: Any, row: Any, H: Any, K: Any, weights: Any, wants_total: bool) -> float:
    total = 0.0
    for i in range(column.size):
        total += _weigh_row(K_bar[i], column[i], row, H[i], K[i], weights, wants_total)
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


@njit(nogil=True, cache=True, fastmath={"contract"})
def _square_norms(product: Any, norms: Any) -> None:
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
        self._tables: tuple[Any, Any, Any] | None = None

    @property
    def path(self) -> str:
        """The path in words."""
        return f"{super().path}, compiled"

    def _inputs(self, chunk: EntryChunk, x: Tensor) -> None:
        if chunk.shard.factors is None:
            super()._inputs(chunk, x)
        else:
            _gather(*self._scaled(chunk.shard.factors), chunk.indices.numpy(), x.numpy())

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

    def _values(self, half: Tensor, H: Tensor | None) -> None:
        slope = _NOTHING if H is None else H.numpy()
        scratch = self.buffer("scratch", 2, half.size(-1)).numpy()
        _kernel(half.numpy(), slope, self._twice_nu, self.outputscale, scratch)

    def _weigh(
        self, K_bar: Tensor, column: Tensor, row: Tensor, found: Features, weights: Tensor | None
    ) -> Tensor | None:
        assert found.K is not None  # noqa: S101 the way back asks for it
        assert found.H is not None  # noqa: S101
        v = _NO_WEIGHTS if weights is None else weights.contiguous().numpy()
        total = _weigh(
            K_bar.numpy(),
            column.numpy(),
            row.numpy(),
            found.H.numpy(),
            found.K.numpy(),
            v,
            self.prior.slope_differs,
        )
        return K_bar.new_tensor(total) if self.prior.slope_differs else None

    def _unscale(self, to_x: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        dx, dx_x = np.empty((x.size(-1), self.D)), np.empty(self.D)
        _unscale(to_x.numpy(), x.numpy(), self._lengthscale, dx, dx_x)
        return torch.from_numpy(dx), torch.from_numpy(dx_x)

    def square_norms(self, left: Tensor, K: Tensor) -> Tensor:
        """See :meth:`Workspace.square_norms`."""
        product, norms = self.buffer("product", len(left), K.size(-1)), np.empty(K.size(-1))
        _square_norms(torch.mm(left, K, out=product).numpy(), norms)
        return torch.from_numpy(norms)
