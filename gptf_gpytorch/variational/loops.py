"""The inner loops of the fused map, compiled: blocks of entries that fit a core's cache, from gather to scatter.

``constants`` are the factor tables, scaled and flat (with draws, their deviations behind them), their ranks, where each
starts, the augmented inducing points, twice the smoothness (0 for RBF), the outputscale, and for draws the number of the first
one, how many an entry has and what ``LatentFactors.hashing`` says, and the normal numbers. An empty array stands for what is
not there. Columns are entries.
"""

import math
from typing import Any

import numpy as np
from numba import njit

from gptf_gpytorch.variational.native import erfcx, exp, gemm, gram, moment, whiten, whiten_back


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
def drawn(indices: Any, start: int, draws: Any, rows: int, places: Any) -> None:
    """Of each entry, twice the row of its normal numbers, plus 1 where they are negated: see ``LatentFactors.noise``."""
    first, copies, begin, multiplier, stride = draws[0], draws[1], draws[2], draws[3], draws[4]
    primes = draws[5:]
    for j in range(indices.shape[0]):
        code = begin
        for mode in range(indices.shape[1]):
            code = (code ^ ((np.int64(indices[j, mode]) + 1) * primes[mode % primes.size])) * multiplier
        number = first + (start + j) % copies
        places[j] = 2 * (((code >> 40) + (number // 2) * stride) & (rows - 1)) + number % 2


@njit(nogil=True, cache=True, fastmath={"contract"})
def _gather(flat: Any, ranks: Any, starts: Any, indices: Any, places: Any, numbers: Any, x: Any) -> None:
    """Rows of the tables, which lie flat one after the other, as columns of x; below them 1, -|x|^2 / 2 and 0."""
    D, half = 0, flat.size // 2
    for mode in range(ranks.size):
        rank = ranks[mode]
        for j in range(indices.shape[0]):
            place = starts[mode] + indices[j, mode] * rank
            for d in range(rank):
                x[D + d, j] = flat[place + d]
            if places.size:
                sign = 1.0 - 2.0 * (places[j] % 2)
                for d in range(rank):
                    x[D + d, j] += sign * numbers[places[j] // 2, D + d] * flat[half + place + d]
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
        exp(K.reshape(-1))
        return
    r = np.empty(K.shape[1])
    for i in range(K.shape[0]):
        row = K[i]
        _distance(row, r, math.sqrt(twice_nu))
        exp(row)
        _matern_values(row, r, H[i] if H.size else H.reshape(-1), twice_nu, scale)


@njit(nogil=True, cache=True)
def _features(constants: Any, indices: Any, start: int, x: Any, K: Any, H: Any) -> Any:
    """The inputs and the kernel of some entries, of which the first has this number; where their draws are."""
    flat, ranks, starts, B_aug, twice_nu, scale, draws, numbers = constants
    places = np.empty(len(indices) if draws.size else 0, dtype=np.int64)
    if draws.size:
        drawn(indices, start, draws, len(numbers), places)
    _gather(flat, ranks, starts, indices, places, numbers, x)
    gemm(B_aug, x, K, False, False, 0.0)
    _kernel(K, H, twice_nu, scale)
    return places


@njit(nogil=True, cache=True)
def _mapped(constants: Any, L_inv: Any, indices: Any, start: int, x: Any, K: Any, w: Any) -> None:
    """The inputs, the kernel and the whitened features of some entries."""
    _features(constants, indices, start, x, K, K[:0])
    whiten(L_inv, K, w)


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def _weigh(K_bar: Any, column: Any, row: Any, H: Any, K: Any, v: Any, wants_total: bool) -> float:
    """E = v * (K_bar + column row') * H in place of K_bar; the sum of v * (K_bar + column row') * K, if it is wanted."""
    total = 0.0
    for i in range(column.size):
        factor = column[i]
        if v.size:
            for j in range(row.size):
                K_bar[i, j] = (K_bar[i, j] + factor * row[j]) * v[j]
        else:
            for j in range(row.size):
                K_bar[i, j] += factor * row[j]
        if wants_total:
            for j in range(row.size):
                total += K_bar[i, j] * K[i, j]
        for j in range(row.size):
            K_bar[i, j] *= H[i, j]
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
def _scatter(constants: Any, dx: Any, indices: Any, places: Any, gradient: Any) -> None:
    """Add columns of dx to rows of the tables' gradients, which lie as the tables do: the transpose of ``_gather``.

    That of a deviation is of its log.
    """
    flat, ranks, starts, _, _, _, _, numbers = constants
    D, half = 0, flat.size // 2
    for mode in range(ranks.size):
        rank = ranks[mode]
        for j in range(indices.shape[0]):
            place = starts[mode] + indices[j, mode] * rank
            for d in range(rank):
                gradient[place + d] += dx[D + d, j]
            if places.size:
                sign = 1.0 - 2.0 * (places[j] % 2)
                for d in range(rank):
                    drawn = sign * numbers[places[j] // 2, D + d] * flat[half + place + d]
                    gradient[half + place + d] += dx[D + d, j] * drawn
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
def moments(constants: Any, L_inv: Any, indices: Any, row: Any, v: Any, block: int, W: Any) -> None:
    """Add v z z' to the upper triangle of W, z being w with the row's number below."""
    p, columns = constants[3].shape
    for_x, for_K, for_w = np.empty(columns * block), np.empty(p * block), np.empty((p + 1) * block)
    for start in range(0, len(indices), block):
        part = indices[start : start + block]
        n = len(part)
        x, K, w = _array(for_x, columns, n), _array(for_K, p, n), _array(for_w, p + 1, n)
        _mapped(constants, L_inv, part, start, x, K, w[:p])
        w[p] = row[start : start + n]
        if v.size:
            root = np.sqrt(v[start : start + n])
            for i in range(p + 1):
                w[i] *= root
        gram(w, W)


@njit(nogil=True, cache=True, error_model="numpy")
def log_Phi_and_rho(z: float) -> tuple[float, float]:
    """The log of Phi(z), and its derivative; see :mod:`gptf_gpytorch.likelihoods`."""
    scaled = erfcx(abs(z) * math.sqrt(0.5), 0)
    if z <= 0.0:
        return math.log(0.5 * scaled) - 0.5 * z * z, math.sqrt(2.0 / math.pi) / scaled
    lead = float(np.float32(z))  # its square is exact
    density = math.exp(-0.5 * lead * lead) * math.exp(-0.5 * (z - lead) * (z + lead))
    above = 0.5 * density * scaled
    return math.log1p(-above), density / math.sqrt(2.0 * math.pi) / (1.0 - above)


@njit(nogil=True, cache=True)
def probit(
    constants: Any,
    L_inv: Any,
    eta: Any,
    mean: float,
    offset: Any,
    curved: bool,
    indices: Any,
    y: Any,
    v: Any,
    block: int,
    W: Any,
    a5: Any,
    slope: Any,
) -> float:
    """Add to the upper triangle of W and to a5, write the slopes, and return the sum of v log Phi(t)."""
    p, columns = constants[3].shape
    for_x, for_K, for_w = np.empty(columns * block), np.empty(p * block), np.empty(p * block)
    total, for_f = 0.0, np.empty(block)
    for start in range(0, len(indices), block):
        part = indices[start : start + block]
        n = len(part)
        x, K, w, f = _array(for_x, columns, n), _array(for_K, p, n), _array(for_w, p, n), for_f[:n]
        _mapped(constants, L_inv, part, start, x, K, w)
        gemm(eta, w, f.reshape(1, n), False, False, 0.0)
        rows, root = slope[start : start + n], np.ones(n)
        for j in range(n):
            sign = 2.0 * y[start + j] - 1.0
            t = sign * (f[j] + mean + (offset[start + j] if offset.size else 0.0))
            value, rho = log_Phi_and_rho(t)
            weight = v[start + j] if v.size else 1.0
            total += weight * value
            rows[j] = sign * rho
            f[j] = weight * rows[j]
            # For t far below 0 the sum rho + t cancels to about 1 / |t|.
            root[j] = math.sqrt(weight * (min(max(rho * (rho + t), 0.0), 1.0) if curved else 1.0))
        moment(w, f, a5)
        if v.size or curved:
            for i in range(p):
                w[i] *= root
        gram(w, W)
    return total


@njit(nogil=True, cache=True)
def back(
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
    along: Any,
    flat: Any,
) -> float:
    """The way back; adds to the last four arguments, of which ``along`` (written: column' k) and flat may be empty.

    Returns the sum of K_bar K.
    """
    B_aug, twice_nu = constants[3], constants[4]
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
        places = _features(constants, part, start, x, K, H)
        if explicit:
            gemm(left, K, E, False, False, 0.0)
        else:
            whiten(L_inv, K, E)
            gemm(left, E, w, False, False, 0.0)
            whiten_back(L_inv, w, E)
        weights = v[start : start + n]
        total += _weigh(E, column, row[start : start + n], H, K, weights, twice_nu != 0)
        gemm(E, x, to_b, False, True, 1.0)
        dx = _array(for_dx, columns, n)
        gemm(b_ones, E, dx, False, False, 0.0)
        _unscale(dx, x, dx_x)
        if flat.size:
            _scatter(constants, dx, part, places, flat)
        if along.size:
            gemm(column.reshape(1, p), K, along[start : start + n].reshape(1, n), False, False, 0.0)
    return total


@njit(nogil=True, cache=True)
def project(constants: Any, lam: Any, T: Any, indices: Any, block: int, means: Any, norms: Any) -> None:
    """Of each entry, lam' k and |T k|^2."""
    p, columns = constants[3].shape
    for_x, for_K, for_product = np.empty(columns * block), np.empty(p * block), np.empty(len(T) * block)
    for start in range(0, len(indices), block):
        part = indices[start : start + block]
        n = len(part)
        x, K, product = _array(for_x, columns, n), _array(for_K, p, n), _array(for_product, len(T), n)
        _features(constants, part, start, x, K, K[:0])
        gemm(lam, K, means[start : start + n].reshape(1, n), False, False, 0.0)
        if len(T):
            gemm(T, K, product, False, False, 0.0)
        _square_norms(product, norms[start : start + n])
