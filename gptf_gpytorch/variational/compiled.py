"""The inner loops of the fused map, compiled with Numba: a thread's whole share of the entries is one call.

In torch it takes some twenty calls a chunk, each of which takes the interpreter's lock and hands it over; with a loop
that needs no interpreter the blocks can be small enough for the second level cache, too. Matrix products and
exponentials are those of torch's own library where it offers them (MKL), else SciPy's and the one below. Only for float64
on a CPU.
"""

import ctypes
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numba import carray, cfunc, njit, types
from numba.extending import get_cython_function_address
from torch import Tensor

from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational.statistics import EntryChunk
from gptf_gpytorch.variational.workspace import Pulled, Workspace

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first times an integer below 2^11 is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: a number added to it is rounded to an integer, kept in the lowest bits
_LOWEST = -708.0  # below this, exp is subnormal
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(14))
_NO_WEIGHTS = np.empty(0)


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


_INT, _DOUBLE, _LETTER = (types.CPointer(kind) for kind in (types.int32, types.float64, types.uint8))
_EXP = types.void(types.int32, _DOUBLE, _DOUBLE, types.int64)
_GEMM = types.void(
    _LETTER, _LETTER, _INT, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT, _DOUBLE, _DOUBLE, _INT
)
_TRANSPOSED = np.frombuffer(b"NT", dtype=np.uint8)
# High accuracy, subnormal numbers, no global error state: what torch asks of MKL.
_VML_MODE = 0x2 | 0x140000 | 0x100


@cfunc(_EXP, cache=True)
def _own_exp(count: Any, source: Any, target: Any, mode: Any) -> None:  # pragma: no cover - compiled
    values = carray(target, count)
    values[:] = carray(source, count)
    exp_(values, np.empty(256))


def _symbols() -> dict[str, int]:
    """Addresses of a matrix product and of an exponential of arrays: torch's where its library has them.

    The compiled code, which is kept on disk, knows them by name only.
    """
    libraries = Path(torch.__file__).parent.glob("lib/libtorch_cpu.*")
    found = {"gptf_gemm": get_cython_function_address("scipy.linalg.cython_blas", "dgemm"), "gptf_exp": _own_exp.address}
    for path in libraries:
        library = ctypes.CDLL(str(path))
        for name, symbol in (("gptf_gemm", "dgemm_"), ("gptf_exp", "vmdExp")):
            address = ctypes.cast(getattr(library, symbol, None), ctypes.c_void_p).value
            if address is not None:
                found[name] = address
    return found


for _name, _address in _symbols().items():
    llvmlite.binding.add_symbol(_name, _address)
_external_exp = types.ExternalFunction("gptf_exp", _EXP)
_external_gemm = types.ExternalFunction("gptf_gemm", _GEMM)


@njit(nogil=True, cache=True)
def _exp(values: Any) -> None:
    """The exponential in place of contiguous values."""
    _external_exp(values.size, values.ctypes, values.ctypes, _VML_MODE)


@njit(nogil=True, cache=True)
def _distance_of_rows(array: Any) -> int:
    """In numbers; the stride of a single row may be anything."""
    return max(array.strides[0] // 8, array.shape[1])  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def _gemm(A: Any, B: Any, C: Any, transpose_a: bool, transpose_b: bool, keep: float) -> None:
    """C = op(A) op(B) + keep C; each has rows of consecutive numbers."""
    # Fortran's product of the transposes, whose leading dimensions are the distances between our rows.
    sizes = np.empty(6, dtype=np.int32)
    sizes[0], sizes[1], sizes[2] = C.shape[1], C.shape[0], A.shape[0] if transpose_a else A.shape[1]
    sizes[3], sizes[4], sizes[5] = _distance_of_rows(B), _distance_of_rows(A), _distance_of_rows(C)
    factors = np.empty(2)
    factors[0], factors[1] = 1.0, keep
    _external_gemm(
        _TRANSPOSED[int(transpose_b) :].ctypes,
        _TRANSPOSED[int(transpose_a) :].ctypes,
        sizes.ctypes,
        sizes[1:].ctypes,
        sizes[2:].ctypes,
        factors.ctypes,
        B.ctypes,
        sizes[3:].ctypes,
        A.ctypes,
        sizes[4:].ctypes,
        factors[1:].ctypes,
        C.ctypes,
        sizes[5:].ctypes,
    )


# A product with a triangular matrix goes by blocks of rows that skip most of its zeros.
_ROWS = 36


@njit(nogil=True, cache=True)
def _whiten(L_inv: Any, K: Any, w: Any) -> None:
    """w = L^-1 K."""
    for first in range(0, len(w), _ROWS):
        last = min(first + _ROWS, len(w))
        _gemm(L_inv[first:last, :last], K[:last], w[first:last], False, False, 0.0)


@njit(nogil=True, cache=True)
def _whiten_back(L_inv: Any, w_bar: Any, K_bar: Any) -> None:
    """K_bar = L^-T w_bar."""
    for first in range(0, len(w_bar), _ROWS):
        last = min(first + _ROWS, len(w_bar))
        _gemm(L_inv[first:, first:last], w_bar[first:], K_bar[first:last], True, False, 0.0)


@njit(nogil=True, cache=True)
def _gram(w: Any, W: Any) -> None:
    """Add w w' to the lower triangle of W."""
    for first in range(0, len(w), _ROWS):
        last = min(first + _ROWS, len(w))
        _gemm(w[first:last], w[:last], W[first:last, :last], False, True, 1.0)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def _moment(w: Any, row: Any, c: Any) -> None:
    """Add w row to c."""
    for i in range(len(w)):
        total = 0.0
        for j in range(row.size):
            total += w[i, j] * row[j]
        c[i] += total


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
def _kernel(K: Any, H: Any, twice_nu: int, scale: float) -> None:
    """The kernel's values in place of minus half the squared distances; for Matern also H, unless it is empty."""
    if twice_nu == 0:
        _exp(K.reshape(-1))
        return
    r = np.empty(K.shape[1])
    for i in range(K.shape[0]):
        row = K[i]
        _distance(row, r, math.sqrt(twice_nu))
        _exp(row)
        _matern_values(row, r, H[i] if H.size else H.reshape(-1), twice_nu, scale)


@njit(nogil=True, cache=True)
def _features(constants: Any, indices: Any, x: Any, K: Any, H: Any) -> None:
    """The inputs and the kernel of some entries."""
    flat, ranks, starts, B_aug, twice_nu, scale = constants
    _gather(flat, ranks, starts, indices, x)
    _gemm(B_aug, x, K, False, False, 0.0)
    _kernel(K, H, twice_nu, scale)


@njit(nogil=True, cache=True)
def _mapped(constants: Any, L_inv: Any, indices: Any, x: Any, K: Any, w: Any) -> None:
    """The inputs, the kernel and the whitened features of some entries."""
    _features(constants, indices, x, K, K[:0])
    _whiten(L_inv, K, w)


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


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def _unscale(to_x: Any, x: Any, dx_x: Any) -> None:
    """The gradient of x in place of its parts; the sum of it times x is added."""
    D = dx_x.size
    for d in range(D):
        total = 0.0
        for j in range(x.shape[1]):
            value = to_x[d, j] - to_x[D, j] * x[d, j]
            total += value * x[d, j]
            to_x[d, j] = value
        dx_x[d] += total


@njit(nogil=True, cache=True)
def _scatter(dx: Any, indices: Any, ranks: Any, starts: Any, flat: Any) -> None:
    """Add columns of dx to rows of the tables, which lie flat one after the other: the transpose of ``_gather``."""
    D = 0
    for mode in range(ranks.size):
        rank = ranks[mode]
        for j in range(indices.shape[0]):
            place = starts[mode] + indices[j, mode] * rank
            for d in range(rank):
                flat[place + d] += dx[D + d, j]
        D += rank


@njit(nogil=True, cache=True, fastmath={"contract"})
def _square_norms(product: Any, norms: Any) -> None:
    norms[:] = 0.0
    for i in range(product.shape[0]):
        row = product[i]
        for j in range(row.size):
            norms[j] += row[j] * row[j]


@njit(nogil=True, cache=True)
def _array(memory: Any, rows: int, columns: int) -> Any:
    return memory[: rows * columns].reshape(rows, columns)


@njit(nogil=True, cache=True)
def _moments(constants: Any, L_inv: Any, indices: Any, row: Any, v: Any, block: int, W: Any, c: Any) -> None:
    """Add v w w' to the lower triangle of W, and v w row to c."""
    p, columns = constants[3].shape
    for_x, for_K, for_w = np.empty(columns * block), np.empty(p * block), np.empty(p * block)
    for start in range(0, len(indices), block):
        part = indices[start : start + block]
        n = len(part)
        x, K, w, r = _array(for_x, columns, n), _array(for_K, p, n), _array(for_w, p, n), row[start : start + n]
        _mapped(constants, L_inv, part, x, K, w)
        if v.size:
            root = np.sqrt(v[start : start + n])
            r = r * root
            for i in range(p):
                w[i] *= root
        _gram(w, W)
        _moment(w, r, c)


@njit(nogil=True, cache=True)
def _back(
    constants: Any,
    L_inv: Any,
    b_ones: Any,
    explicit: bool,
    left: Any,
    column: Any,
    indices: Any,
    row: Any,
    v: Any,
    block: int,
    to_b: Any,
    dx_x: Any,
    k: Any,
    flat: Any,
) -> float:
    """The way back; adds to the last four arguments, of which k and flat may be empty, and returns the sum of K_bar K."""
    _, ranks, starts, B_aug, twice_nu, scale = constants
    p, columns = B_aug.shape
    for_x, for_dx = np.empty(columns * block), np.empty(columns * block)
    for_K, for_E, for_w = np.empty(p * block), np.empty(p * block), np.empty(p * block)
    for_H = np.empty(p * block if twice_nu else 0)
    total = 0.0
    for start in range(0, len(indices), block):
        part = indices[start : start + block]
        n = len(part)
        x, K, E, w = _array(for_x, columns, n), _array(for_K, p, n), _array(for_E, p, n), _array(for_w, p, n)
        H = _array(for_H, p, n) if twice_nu else K
        _features(constants, part, x, K, H)
        if explicit:
            _gemm(left, K, E, False, False, 0.0)
        else:
            _whiten(L_inv, K, E)
            _gemm(left, E, w, False, False, 0.0)
            _whiten_back(L_inv, w, E)
        weights = v[start : start + n]
        total += _weigh(E, column, row[start : start + n], H, K, weights, twice_nu != 0)
        _gemm(E, x, to_b, False, True, 1.0)
        dx = _array(for_dx, columns, n)
        _gemm(b_ones, E, dx, False, False, 0.0)
        _unscale(dx, x, dx_x)
        if flat.size:
            _scatter(dx, part, ranks, starts, flat)
        if k.size:
            _moment(K, weights if weights.size else np.ones(n), k)
    return total


@njit(nogil=True, cache=True)
def _project(constants: Any, lam: Any, T: Any, indices: Any, block: int, means: Any, norms: Any) -> None:
    """lam' k and |T k|^2 of each entry."""
    p, columns = constants[3].shape
    for_x, for_K, for_product = np.empty(columns * block), np.empty(p * block), np.empty(len(T) * block)
    for start in range(0, len(indices), block):
        part = indices[start : start + block]
        n = len(part)
        x, K, product = _array(for_x, columns, n), _array(for_K, p, n), _array(for_product, len(T), n)
        _features(constants, part, x, K, K[:0])
        _gemm(lam, K, means[start : start + n].reshape(1, n), False, False, 0.0)
        if len(T):
            _gemm(T, K, product, False, False, 0.0)
        _square_norms(product, norms[start : start + n])


class CompiledWorkspace(Workspace):
    """A :class:`Workspace` whose loops are compiled."""

    def __init__(self, *where: Any, **options: Any) -> None:
        super().__init__(*where, **options)
        self._twice_nu = round(2.0 * self.prior.nu) if self.prior.slope_differs else 0
        # A block's kernel, features and gradient stay in the cache of a core.
        self._block = min(max(100_000 // self.p // 8 * 8, 128), 2000)
        self._tables: tuple[Any, Any, Any] | None = None

    @property
    def path(self) -> str:
        """The path in words."""
        return f"{super().path}, compiled"

    def runs(self, chunks: Sequence[EntryChunk]) -> Sequence[EntryChunk]:
        """All of them at once, unless x has to be made of plain inputs first."""
        if not chunks or chunks[0].shard.factors is None:
            return chunks
        return [EntryChunk(chunks[0].shard, slice(chunks[0].rows.start, chunks[-1].rows.stop))]

    def whitened(self, chunk: EntryChunk) -> Tensor:
        """See :meth:`Workspace.whitened`."""
        n, (constants, indices) = chunk.rows.stop - chunk.rows.start, self._entries(chunk)
        x, K, w = (self.buffer(name, rows, n) for name, rows in (("x", self.columns), ("K", self.p), ("w", self.p)))
        _mapped(constants, self.L_inv.numpy(), indices, x.numpy(), K.numpy(), w.numpy())
        return w

    def gram(self, w: Tensor, weights: Tensor | None) -> Tensor:
        """See :meth:`Workspace.gram`."""
        if weights is not None:
            w = torch.mul(w, weights.sqrt(), out=self.buffer("root", *w.shape))
        W = np.zeros((self.p, self.p))
        _gram(w.numpy(), W)
        return _mirrored(W)

    def moments(self, run: EntryChunk, row: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Workspace.moments`."""
        constants, indices = self._entries(run)
        W, c = np.zeros((self.p, self.p)), np.zeros(self.p)
        _moments(constants, self.L_inv.numpy(), indices, row.numpy(), _weights(run), self._block, W, c)
        return _mirrored(W), torch.from_numpy(c)

    def back(
        self,
        run: EntryChunk,
        left: Tensor,
        column: Tensor,
        row: Tensor,
        tables: Sequence[Tensor | None],
        *,
        sum_kernel: bool,
    ) -> Pulled:
        """See :meth:`Workspace.back`."""
        constants, indices = self._entries(run)
        flat = np.zeros(constants[0].size if any(table is not None for table in tables) else 0)
        to_b, dx_x, k = np.zeros((self.p, self.columns)), np.zeros(self.D), np.zeros(self.p if sum_kernel else 0)
        total = _back(
            constants,
            self.L_inv.numpy(),
            self.b_ones.numpy(),
            self.explicit,
            left.contiguous().numpy(),
            column.numpy(),
            indices,
            row.numpy(),
            _weights(run),
            self._block,
            to_b,
            dx_x,
            k,
            flat,
        )
        if flat.size:
            self._add(torch.from_numpy(flat), run, tables)
        scale = total if self._twice_nu else to_b[:, self.D].sum()
        found = (torch.from_numpy(to_b), torch.from_numpy(dx_x), self.L_inv.new_tensor(scale))
        return Pulled(*found, torch.from_numpy(k) if sum_kernel else None)

    def project(self, run: EntryChunk, lam: Tensor, T: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Workspace.project`."""
        constants, indices = self._entries(run)
        means, norms = np.empty(len(indices)), np.empty(len(indices))
        _project(constants, lam.numpy()[None], T.numpy(), indices, self._block, means, norms)
        return torch.from_numpy(means), torch.from_numpy(norms)

    def _entries(self, run: EntryChunk) -> tuple[tuple[Any, ...], Any]:
        """The tables with what else the kernel is made of, and the rows of the tables that each entry has."""
        if run.shard.factors is None:  # its own rows, one after the other
            flat = (run.gather() / self.lengthscale - self.centre).reshape(-1).numpy()
            tables = flat, np.array([self.D]), np.array([0])
            indices = np.arange(run.rows.stop - run.rows.start)[:, None]
        else:
            tables, indices = self._scaled(run.shard.factors), run.indices.numpy()
            if indices.dtype not in (np.int32, np.int64) or not indices.flags.c_contiguous:
                indices = np.ascontiguousarray(indices, dtype=np.int64)
        return (*tables, self.B_aug.numpy(), self._twice_nu, self.outputscale), indices

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

    def _add(self, flat: Tensor, run: EntryChunk, tables: Sequence[Tensor | None]) -> None:
        """Add the gradient of scaled rows to that of the tables they came from."""
        if run.shard.factors is None:
            run.scatter_(tables, flat.view(-1, self.D) / self.lengthscale)
            return
        ranks = list(run.shard.factors.ranks)
        parts = flat.split([table.numel() for table in run.shard.factors.weights])
        for table, part, lengthscale in zip(tables, parts, self.lengthscale.split(ranks), strict=True):
            if table is not None:
                table.addcdiv_(part.view(table.shape), lengthscale)


def _weights(run: EntryChunk) -> Any:
    return _NO_WEIGHTS if run.weights is None else run.weights.contiguous().numpy()


def _mirrored(lower: Any) -> Tensor:
    """The symmetric matrix with this lower triangle."""
    return torch.from_numpy(np.tril(lower) + np.tril(lower, -1).T)
