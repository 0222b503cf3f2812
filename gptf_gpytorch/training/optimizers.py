"""Optimisers over one flat vector: L-BFGS, gradient descent with a line search, Adam.

Every decision is a function of the objective's values and gradients, which are the same bits on all workers: the workers
take the same steps without talking about it. All memory is tensors, so it can be saved and restored.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gptf_gpytorch.errors import InputError, NumericalError

OPTIMIZERS = ("lbfgs", "gd", "adam")
_ARMIJO, _CURVATURE = 1e-4, 0.9
# The share of its learning rate that Adam ends with where it falls.
_LAST = 0.02


class Point(NamedTuple):
    """A place where the objective is known."""

    x: Tensor  # [n]
    value: float
    gradient: Tensor  # [n]


#: The objective and its gradient at x; it may raise :class:`NumericalError`.
Objective = Callable[[Tensor], Point]


class Optimizer(ABC):
    """Takes steps that lower an objective."""

    @abstractmethod
    def step(self, objective: Objective, point: Point) -> Point | None:
        """The next point, or None if no step from here lowers the objective."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """The memory, as tensors."""

    @abstractmethod
    def load(self, state: dict[str, Tensor]) -> None:
        """Take back what :meth:`state` returned."""

    def reset(self) -> None:
        """Forget what was learned about an objective that has changed."""
        self.load({})


class LBFGS(Optimizer):
    r"""Limited-memory BFGS with a strong Wolfe line search.

    The direction is :math:`-H g` with H the inverse Hessian that the last steps s and gradient changes y imply, by the
    two-loop recursion.

    :param memory: how many steps are remembered.
    """

    def __init__(self, memory: int = 20) -> None:
        self.memory = memory
        self._steps: list[Tensor] = []
        self._changes: list[Tensor] = []

    def step(self, objective: Objective, point: Point) -> Point | None:
        """See :meth:`Optimizer.step`."""
        if not bool(point.gradient.any()):
            return None
        for attempt in range(2):
            direction = self._direction(point.gradient)
            first = 1.0 if self._steps else min(1.0, 1.0 / float(point.gradient.abs().sum()))
            found = search(objective, point, direction, first)
            if found is not None:
                self._remember(found.x - point.x, found.gradient - point.gradient)
                return found
            if not self._steps or attempt:
                return None
            self.reset()  # once more, along the gradient
        return None

    def _direction(self, gradient: Tensor) -> Tensor:
        q, pairs = gradient.clone(), list(zip(self._steps, self._changes, strict=True))
        shares = []
        for s, y in reversed(pairs):
            share = float(s @ q) / float(s @ y)
            q -= share * y
            shares.append(share)
        if pairs:
            s, y = pairs[-1]
            q *= float(s @ y) / float(y @ y)
        for (s, y), share in zip(pairs, reversed(shares), strict=True):
            q += (share - float(y @ q) / float(s @ y)) * s
        if not float(q @ gradient) > 0:
            self.reset()
            return -gradient
        return -q

    def _remember(self, s: Tensor, y: Tensor) -> None:
        if float(s @ y) > 1e-10 * float(y.norm() * s.norm()):
            self._steps, self._changes = [*self._steps, s][-self.memory :], [*self._changes, y][-self.memory :]

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Optimizer.state`."""
        if not self._steps:
            return {}
        return {"steps": torch.stack(self._steps), "changes": torch.stack(self._changes)}

    def load(self, state: dict[str, Tensor]) -> None:
        """See :meth:`Optimizer.load`."""
        # Each in memory of its own: how a dot product is rounded may depend on where its operands begin.
        self._steps = [row.clone() for row in state["steps"]] if state else []
        self._changes = [row.clone() for row in state["changes"]] if state else []


class GradientDescent(Optimizer):
    """Gradient descent, with the step found by backtracking from twice the last one."""

    def __init__(self) -> None:
        self._last: float | None = None

    def step(self, objective: Objective, point: Point) -> Point | None:
        """See :meth:`Optimizer.step`."""
        square = float(point.gradient @ point.gradient)
        if square == 0.0:
            return None
        length = 1.0 / math.sqrt(square) if self._last is None else 2.0 * self._last
        for _ in range(40):
            found = attempt(objective, point.x - length * point.gradient)
            if found is not None and found.value <= point.value - _ARMIJO * length * square:
                self._last = length
                return found
            length *= 0.5
        return None

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Optimizer.state`."""
        return {} if self._last is None else {"last": torch.tensor(self._last, dtype=torch.float64)}

    def load(self, state: dict[str, Tensor]) -> None:
        """See :meth:`Optimizer.load`."""
        self._last = float(state["last"]) if state else None


class Adam(Optimizer):
    """Adam; it does not ask whether the objective went down.

    :param learning_rate: the length of a step.
    :param fall: steps along which the length falls to a fiftieth, as half a cosine; None keeps it.
    """

    def __init__(self, learning_rate: float = 0.03, fall: int | None = None) -> None:
        self.learning_rate, self.fall = learning_rate, fall
        self._first = self._second = torch.zeros(())
        self._count = self._taken = 0

    def step(self, objective: Objective, point: Point) -> Point | None:
        """See :meth:`Optimizer.step`."""
        self._count += 1
        self._taken += 1
        # Of the parameters of all entities: as few passes over them as there can be, none of them in place, for who goes back.
        gradient, fair = point.gradient, math.sqrt(1 - 0.999**self._count)
        self._first = torch.lerp(self._first.to(gradient), gradient, 0.1)
        self._second = (0.999 * self._second.to(gradient)).addcmul(gradient, gradient, value=0.001)
        root = self._second.sqrt().add_(1e-8 * fair)
        return objective(point.x.addcdiv(self._first, root, value=-self._length() * fair / (1 - 0.9**self._count)))

    def _length(self) -> float:
        if self.fall is None:
            return self.learning_rate
        share = min(1.0, (self._taken - 1) / max(1, self.fall))
        return self.learning_rate * (_LAST + (1.0 - _LAST) * 0.5 * (1.0 + math.cos(math.pi * share)))

    def state(self) -> dict[str, Tensor]:
        """See :meth:`Optimizer.state`."""
        if not self._taken:
            return {}
        counts = {"count": torch.tensor(self._count), "taken": torch.tensor(self._taken)}
        return {"first": self._first, "second": self._second, **counts}

    def reset(self) -> None:
        """See :meth:`Optimizer.reset`; how far the steps have fallen is not forgotten."""
        taken = 0 if self.fall is None else self._taken
        super().reset()
        self._taken = taken

    def load(self, state: dict[str, Tensor]) -> None:
        """See :meth:`Optimizer.load`."""
        self._first, self._second = state.get("first", torch.zeros(())), state.get("second", torch.zeros(()))
        self._count = int(state.get("count", 0))
        self._taken = int(state.get("taken", self._count))


def make(name: str, learning_rate: float, fall: int | None = None) -> Optimizer:
    """The optimiser of that name.

    :param fall: see :class:`Adam`.
    """
    if name == "lbfgs":
        return LBFGS()
    if name == "gd":
        return GradientDescent()
    if name == "adam":
        return Adam(learning_rate, fall)
    raise InputError(f"optimizer must be one of {', '.join(OPTIMIZERS)}. Got {name!r}.")


def attempt(objective: Objective, x: Tensor) -> Point | None:
    """The objective at x, or None where it is no number: too far."""
    try:
        found = objective(x)
    except NumericalError:
        return None
    return found if math.isfinite(found.value) and bool(found.gradient.isfinite().all()) else None


@dataclass
class _Trial:
    """A place on the line."""

    length: float
    value: float
    slope: float
    point: Point | None


def search(objective: Objective, start: Point, direction: Tensor, first: float, evaluations: int = 25) -> Point | None:
    r"""A step t along a direction of descent that satisfies the strong Wolfe conditions,

    .. math:: \phi(t) \le \phi(0) + c_1 t \phi'(0), \qquad |\phi'(t)| \le c_2 |\phi'(0)|,

    or the best one found with a lower value, or None. Where the objective is no number, the step was too long.

    :param first: the step that is tried first.
    :param evaluations: the most that may be spent.
    """
    slope = float(start.gradient @ direction)
    left = evaluations

    def trial(length: float) -> _Trial:
        nonlocal left
        left -= 1
        found = attempt(objective, start.x + length * direction)
        if found is None:
            return _Trial(length, math.inf, math.nan, None)
        return _Trial(length, found.value, float(found.gradient @ direction), found)

    def too_high(now: _Trial, low: _Trial) -> bool:
        return now.value > start.value + _ARMIJO * now.length * slope or now.value >= low.value

    previous, now = _Trial(0.0, start.value, slope, start), trial(first)
    while not too_high(now, previous) and abs(now.slope) > -_CURVATURE * slope and now.slope < 0 and left > 0:
        previous, now = now, trial(2.5 * now.length)
    if not too_high(now, previous) and (abs(now.slope) <= -_CURVATURE * slope or left <= 0):
        return now.point
    # Between a low end, which goes down towards the other, and a high one.
    low, high = (previous, now) if too_high(now, previous) else (now, previous)
    while left > 0 and abs(high.length - low.length) * direction.abs().max() > 1e-14:
        now = trial(_between(low, high))
        if too_high(now, low):
            high = now
            continue
        if abs(now.slope) <= -_CURVATURE * slope:
            return now.point
        if now.slope * (high.length - low.length) >= 0:
            high = low
        low = now
    return low.point if low.length > 0 else None


def _between(low: _Trial, high: _Trial) -> float:
    """The minimum of the parabola through the low end, its slope and the high end's value, kept off the ends."""
    width = high.length - low.length
    share = 0.5
    if math.isfinite(high.value):
        bend = (high.value - low.value) / width - low.slope
        if bend * width > 0:
            share = -0.5 * low.slope / bend
    else:
        share = 0.1
    return low.length + min(max(share, 0.1), 0.9) * width
