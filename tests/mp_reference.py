"""The paper's literal, unwhitened formulas in 60-digit arithmetic, with gradients. Imports nothing from the package.

Parameters are passed as nested lists of floats, under the names of the model's raw parameters, and transformed here
as the model transforms them (softplus). Gradients are central differences: at 60 digits a step of 1e-18 leaves 30
correct ones.
"""

import mpmath

DIGITS = 60
STEP = mpmath.mpf(10) ** -18


def softplus(raw):
    return mpmath.log1p(mpmath.exp(raw))


def flat(value):
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, list) else [value]


def rebuilt(value, leaves):
    """``value`` with its numbers replaced, in order, by those of the iterator ``leaves``."""
    return [rebuilt(part, leaves) for part in value] if isinstance(value, list) else next(leaves)


class Problem:
    """A small data set and a model of it.

    ``raw`` has ``U`` (a list of tables), ``B``, ``lengthscale`` and ``outputscale``, and for continuous data ``noise``.
    """

    def __init__(self, raw, indices, y, jitter, noise_floor=0.0):
        self.raw, self.indices, self.y = raw, indices, y
        self.jitter, self.noise_floor = mpmath.mpf(jitter), mpmath.mpf(noise_floor)

    def kernel_matrices(self, raw):
        ell, scale = [softplus(r) for r in raw["lengthscale"]], softplus(raw["outputscale"])
        X = [[u for k, i in enumerate(index) for u in raw["U"][k][i]] for index in self.indices]

        def k(a, b):
            return scale * mpmath.exp(-sum(((s - t) / e) ** 2 for s, t, e in zip(a, b, ell, strict=True)) / 2)

        B, p = raw["B"], len(raw["B"])
        K_BB = mpmath.matrix(p, p)
        for a in range(p):
            for b in range(p):
                K_BB[a, b] = k(B[a], B[b]) + (self.jitter if a == b else 0)
        K_BX = mpmath.matrix([[k(b, x) for x in X] for b in B])
        return K_BB, K_BX, scale * len(X)

    def bound(self, raw, lam=None):
        """L1*, or L2* at lambda."""
        K_BB, K_BX, a3 = self.kernel_matrices(raw)
        N = len(self.y)
        A1 = K_BX * K_BX.T
        beta = 1 / (softplus(raw["noise"]) + self.noise_floor) if lam is None else mpmath.mpf(1)
        common = (
            log_det(K_BB) / 2
            - log_det(K_BB + beta * A1) / 2
            - beta * a3 / 2
            + beta * trace(mpmath.inverse(K_BB) * A1) / 2
            - sum(u**2 for table in raw["U"] for row in table for u in row) / 2
        )
        if lam is None:
            y = mpmath.matrix(self.y)
            a4 = K_BX * y
            quadratic = (a4.T * mpmath.lu_solve(K_BB + beta * A1, a4))[0]
            a2 = sum(t**2 for t in self.y)
            return common - beta * a2 / 2 + beta**2 * quadratic / 2 + N * mpmath.log(beta / (2 * mpmath.pi)) / 2
        f = K_BX.T * lam
        fit = sum(mpmath.log(mpmath.ncdf((2 * t - 1) * f[j])) for j, t in enumerate(self.y))
        return common + fit - (lam.T * K_BB * lam)[0] / 2

    def solve_lambda(self, raw):
        """The maximum of L2* over lambda, by Newton's method in full precision."""
        K_BB, K_BX, _ = self.kernel_matrices(raw)
        lam = mpmath.matrix(len(raw["B"]), 1)
        for _ in range(60):
            s = [2 * t - 1 for t in self.y]
            t = [s[j] * f for j, f in enumerate(K_BX.T * lam)]
            rho = [mpmath.npdf(z) / mpmath.ncdf(z) for z in t]
            gradient = K_BX * mpmath.matrix([s[j] * rho[j] for j in range(len(s))]) - K_BB * lam
            H = mpmath.diag([rho[j] * (rho[j] + t[j]) for j in range(len(s))])
            step = mpmath.lu_solve(K_BB + K_BX * H * K_BX.T, gradient)
            lam += step
            if mpmath.norm(step) < mpmath.mpf(10) ** -45 * (1 + mpmath.norm(lam)):
                return lam
        raise AssertionError("Newton's method must converge")

    def value_and_gradients(self, binary):
        """The bound and its gradient with respect to each raw parameter, as floats."""
        with mpmath.workdps(DIGITS):
            raw = {name: rebuilt(value, map(mpmath.mpf, flat(value))) for name, value in self.raw.items()}
            lam = self.solve_lambda(raw) if binary else None
            gradients = {}
            for name, value in raw.items():
                leaves = flat(value)
                gradients[name] = []
                for place in range(len(leaves)):
                    sides = []
                    for sign in (1, -1):
                        moved = [*leaves[:place], leaves[place] + sign * STEP, *leaves[place + 1 :]]
                        sides.append(self.bound({**raw, name: rebuilt(value, iter(moved))}, lam))
                    gradients[name].append(float((sides[0] - sides[1]) / (2 * STEP)))
            return float(self.bound(raw, lam)), gradients


def log_det(matrix):
    L = mpmath.cholesky(matrix)
    return 2 * sum(mpmath.log(L[i, i]) for i in range(L.rows))


def trace(matrix):
    return sum(matrix[i, i] for i in range(matrix.rows))
