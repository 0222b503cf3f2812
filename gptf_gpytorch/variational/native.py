"""What compiled loops call: products, exponentials and erfcx, without the interpreter.

Matrix products and exponentials are those of torch's own library where it offers them (MKL), else SciPy's and our own;
the exponential is our own on AMD's processors, too.
"""

import ctypes
import math
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numba import carray, cfunc, njit, types  # type: ignore[attr-defined]
from numba.extending import get_cython_function_address

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first times an integer below 2^11 is exact.
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ROUND = 6755399441055744.0  # 1.5 * 2^52: a number added to it is rounded to an integer, kept in the lowest bits
_LOWEST = -708.0  # below this, exp is subnormal
_TAYLOR = tuple(1.0 / math.factorial(power) for power in range(14))


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


_POINTER: Any = types.CPointer
_INT, _DOUBLE, _LETTER = _POINTER(types.int32), _POINTER(types.float64), _POINTER(types.uint8)
_EXP = types.void(types.int32, _DOUBLE, _DOUBLE, types.int64)
_GEMM = types.void(_LETTER, _LETTER, _INT, _INT, _INT, _DOUBLE, _DOUBLE, _INT, _DOUBLE, _INT, _DOUBLE, _DOUBLE, _INT)
_TRANSPOSED = np.frombuffer(b"NT", dtype=np.uint8)
# High accuracy, subnormal numbers, no global error state: what torch asks of MKL.
_VML_MODE = 0x2 | 0x140000 | 0x100


@cfunc(_EXP, cache=True)
def _own_exp(count: Any, source: Any, target: Any, mode: Any) -> None:  # pragma: no cover - compiled
    """In place: ``source`` is ``target``, as in :func:`exp`."""
    exp_(carray(target, count), np.empty(256))


def _own_exp_is_faster() -> bool:
    """MKL's exponential has instructions of 512 bits for Intel's processors alone; ours takes half its time on AMD's."""
    return "znver" in str(llvmlite.binding.get_host_cpu_name())


def _symbols() -> dict[str, int]:
    """Addresses of a matrix product and of an exponential of arrays, torch's where its library has them, and of erfcx.

    The compiled code, which is kept on disk, knows them by name only.
    """
    found: dict[str, Any] = {
        "gptf_gemm": get_cython_function_address("scipy.linalg.cython_blas", "dgemm"),
        "gptf_erfcx": get_cython_function_address("scipy.special.cython_special", "__pyx_fuse_1erfcx"),
        "gptf_exp": _own_exp.address,
    }
    for path in Path(torch.__file__).parent.glob("lib/libtorch_cpu.*"):
        library = ctypes.CDLL(str(path))
        for name, symbol in (("gptf_gemm", "dgemm_"), ("gptf_exp", "vmdExp")):
            if hasattr(library, symbol) and not (name == "gptf_exp" and _own_exp_is_faster()):
                found[name] = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or found[name]
    return found


for _name, _address in _symbols().items():
    llvmlite.binding.add_symbol(_name, _address)
_external_exp: Any = types.ExternalFunction("gptf_exp", _EXP)
_external_gemm: Any = types.ExternalFunction("gptf_gemm", _GEMM)
erfcx: Any = types.ExternalFunction("gptf_erfcx", types.float64(types.float64, types.int32))


@njit(nogil=True, cache=True)
def exp(values: Any) -> None:
    """The exponential in place of contiguous values."""
    _external_exp(values.size, values.ctypes, values.ctypes, _VML_MODE)


@njit(nogil=True, cache=True)
def _distance_of_rows(array: Any) -> int:
    """In numbers; the stride of a single row may be anything."""
    return max(array.strides[0] // 8, array.shape[1])  # type: ignore[no-any-return]


@njit(nogil=True, cache=True)
def gemm(A: Any, B: Any, C: Any, transpose_a: bool, transpose_b: bool, keep: float) -> None:
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


# A product with or to a triangular matrix goes by blocks of rows that skip most of its zeros.
_ROWS, _GRAM_ROWS = 20, 24


@njit(nogil=True, cache=True)
def whiten(L_inv: Any, K: Any, w: Any) -> None:
    """Write L^-1 K to w."""
    for first in range(0, len(w), _ROWS):
        last = min(first + _ROWS, len(w))
        gemm(L_inv[first:last, :last], K[:last], w[first:last], False, False, 0.0)


@njit(nogil=True, cache=True)
def whiten_back(L_inv: Any, w_bar: Any, K_bar: Any) -> None:
    """Write L^-T w_bar to K_bar."""
    for first in range(0, len(w_bar), _ROWS):
        last = min(first + _ROWS, len(w_bar))
        gemm(L_inv[first:, first:last], w_bar[first:], K_bar[first:last], True, False, 0.0)


@njit(nogil=True, cache=True)
def gram(w: Any, W: Any) -> None:
    """Add w w' to the upper triangle of W."""
    first = 0
    while first < len(w):
        last = first + _GRAM_ROWS if first + 3 * _GRAM_ROWS // 2 <= len(w) else len(w)
        gemm(w[:last], w[first:last], W[:last, first:last], False, True, 1.0)
        first = last


@njit(nogil=True, cache=True, fastmath={"contract", "reassoc"})
def moment(w: Any, row: Any, c: Any) -> None:
    """Add w row to c."""
    for i in range(len(w)):
        total = 0.0
        for j in range(row.size):
            total += w[i, j] * row[j]
        c[i] += total
