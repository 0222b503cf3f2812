"""The loop oracle: the paper's formulas, as printed, in NumPy and float64. Imports nothing from the package.

Names are the paper's: U the factors, B the inducing points, K_BB, A1, a2, a3, a4, a5, lam. ``jitter`` is added to the
diagonal of K_BB wherever K_BB appears; ``mu`` is the mean of each entry and ``v`` its weight, which the paper does
not have.
"""

import math

import numpy as np


def rbf(x, z, lengthscale, outputscale):
    total = 0.0
    for a, b, ell in zip(x, z, lengthscale, strict=True):
        total += ((a - b) / ell) ** 2
    return outputscale * math.exp(-0.5 * total)


def concatenate(U, index):
    return np.concatenate([U[k][i] for k, i in enumerate(index)])


def statistics(X, B, k, y, jitter, mu=None, v=None):
    """K_BB, A1, a2, a3, a4 by loops over entries."""
    p, n = len(B), len(X)
    mu, v = np.zeros(n) if mu is None else mu, np.ones(n) if v is None else v
    K_BB = np.array([[k(b, c) for c in B] for b in B]) + jitter * np.eye(p)
    A1, a2, a3, a4 = np.zeros((p, p)), 0.0, 0.0, np.zeros(p)
    for j in range(n):
        k_j = np.array([k(b, X[j]) for b in B])
        A1 += v[j] * np.outer(k_j, k_j)
        a2 += v[j] * (y[j] - mu[j]) ** 2
        a3 += v[j] * k(X[j], X[j])
        a4 += v[j] * k_j * (y[j] - mu[j])
    return K_BB, A1, a2, a3, a4, v.sum()


def prior(U):
    return -0.5 * sum(float((table**2).sum()) for table in U)


def log_det(matrix):
    sign, value = np.linalg.slogdet(matrix)
    assert sign > 0
    return value


def theorem_1(X, B, k, y, beta, jitter, U=(), mu=None, v=None):
    K_BB, A1, a2, a3, a4, N = statistics(X, B, k, y, jitter, mu, v)
    return (
        0.5 * log_det(K_BB)
        - 0.5 * log_det(K_BB + beta * A1)
        - 0.5 * beta * a2
        - 0.5 * beta * a3
        + 0.5 * beta * np.trace(np.linalg.solve(K_BB, A1))
        + prior(U)
        + 0.5 * beta**2 * a4 @ np.linalg.solve(K_BB + beta * A1, a4)
        + 0.5 * N * math.log(beta / (2 * math.pi))
    )


def log_Phi(z):
    return math.log(0.5 * math.erfc(-z / math.sqrt(2)))


def theorem_2(X, B, k, y, lam, jitter, U=(), mu=None, v=None):
    n = len(X)
    mu, v = np.zeros(n) if mu is None else mu, np.ones(n) if v is None else v
    K_BB, A1, _, a3, _, _ = statistics(X, B, k, y, jitter, mu, v)
    fit = 0.0
    for j in range(n):
        k_j = np.array([k(b, X[j]) for b in B])
        fit += v[j] * log_Phi((2 * y[j] - 1) * (mu[j] + lam @ k_j))
    return (
        0.5 * log_det(K_BB)
        - 0.5 * log_det(K_BB + A1)
        - 0.5 * a3
        + fit
        - 0.5 * lam @ K_BB @ lam
        + 0.5 * np.trace(np.linalg.solve(K_BB, A1))
        + prior(U)
    )


def fixed_point_step(X, B, k, y, lam, jitter):
    """Eq. 8: lambda <- (K_BB + A1)^-1 (A1 lambda + a5)."""
    K_BB, A1, _, _, _, _ = statistics(X, B, k, y, jitter)
    a5 = np.zeros(len(B))
    for j in range(len(X)):
        k_j = np.array([k(b, X[j]) for b in B])
        t = (2 * y[j] - 1) * (k_j @ lam)
        density = math.exp(-0.5 * t * t) / math.sqrt(2 * math.pi)
        a5 += k_j * (2 * y[j] - 1) * density / math.exp(log_Phi(t))
    return np.linalg.solve(K_BB + A1, A1 @ lam + a5)


def predict(x, B, k, m, C, jitter):
    """Mean and variance of f at x under q(v) = N(m, C), the textbook way, with explicit inverses."""
    K_BB = np.array([[k(b, c) for c in B] for b in B]) + jitter * np.eye(len(B))
    k_x = np.array([k(b, x) for b in B])
    a = np.linalg.solve(K_BB, k_x)
    return a @ m, k(x, x) - k_x @ a + a @ C @ a
