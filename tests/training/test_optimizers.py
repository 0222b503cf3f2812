"""Optimisers: they find minima as SciPy does, never accept a step that is no better, and can be saved at any step."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, rosen, rosen_der

from gptf_gpytorch import InputError, NumericalError
from gptf_gpytorch.training import optimizers
from gptf_gpytorch.training.optimizers import LBFGS, Adam, GradientDescent, Point, search


def rosenbrock(x: torch.Tensor) -> Point:
    array = x.numpy()
    return Point(x, float(rosen(array)), torch.from_numpy(rosen_der(array)))


def start(n: int = 8) -> Point:
    return rosenbrock(torch.linspace(-1.5, 1.5, n, dtype=torch.float64))


def run(optimizer: optimizers.Optimizer, steps: int, objective=rosenbrock, point: Point | None = None) -> list[Point]:
    points = [start() if point is None else point]
    for _ in range(steps):
        found = optimizer.step(objective, points[-1])
        if found is None:
            break
        points.append(found)
    return points


def test_lbfgs_finds_the_minimum_that_scipy_finds() -> None:
    found = run(LBFGS(), 200)[-1]
    expected = minimize(rosen, start().x.numpy(), jac=rosen_der, method="L-BFGS-B", options={"maxiter": 500, "ftol": 0})
    np.testing.assert_allclose(found.x.numpy(), expected.x, atol=1e-5)
    assert found.value < 1e-15


def test_lbfgs_needs_about_as_many_evaluations_as_scipy() -> None:
    count = 0

    def counted(x: torch.Tensor) -> Point:
        nonlocal count
        count += 1
        return rosenbrock(x)

    optimizer, point = LBFGS(), start()
    while point.value > 1e-10:
        point = optimizer.step(counted, point)
    calls = []
    minimize(rosen, start().x.numpy(), jac=rosen_der, method="L-BFGS-B", callback=lambda x: calls.append(rosen(x)))
    expected = minimize(rosen, start().x.numpy(), jac=rosen_der, method="L-BFGS-B", tol=1e-10).nfev
    assert count <= 1.5 * expected


@pytest.mark.parametrize("optimizer", [LBFGS(), GradientDescent()], ids=["lbfgs", "gd"])
def test_every_step_goes_down(optimizer: optimizers.Optimizer) -> None:
    values = [point.value for point in run(optimizer, 60)]
    assert len(values) == 61
    assert all(after < before for before, after in pairwise(values))


def test_steps_satisfy_the_wolfe_conditions() -> None:
    point = start()
    for first in (1e-6, 1e-3, 1.0, 50.0):
        direction = -point.gradient
        found = search(rosenbrock, point, direction, first)
        length = float((found.x - point.x).norm() / direction.norm())
        slope = float(point.gradient @ direction)
        assert found.value <= point.value + 1e-4 * length * slope
        assert abs(float(found.gradient @ direction)) <= 0.9 * abs(slope)


def test_where_the_objective_is_no_number_the_step_is_shorter() -> None:
    def walled(x: torch.Tensor) -> Point:
        if float(x[0]) > 2.0:
            raise NumericalError("too far")
        value = math.inf if float(x[0]) > 1.0 else float((x - 0.9).square().sum())
        return Point(x, value, 2.0 * (x - 0.9))

    for optimizer in (LBFGS(), GradientDescent()):
        point = walled(torch.tensor([-3.0], dtype=torch.float64))
        assert run(optimizer, 40, walled, point)[-1].value < 1e-8


def test_at_a_minimum_there_is_no_step() -> None:
    point = rosenbrock(torch.ones(8, dtype=torch.float64))
    tilted = Point(point.x, point.value, torch.full((8,), 1e-3, dtype=torch.float64))  # a gradient that is wrong
    assert LBFGS().step(rosenbrock, tilted) is None
    assert GradientDescent().step(rosenbrock, tilted) is None


@pytest.mark.parametrize("name", ["lbfgs", "gd", "adam"])
def test_saved_and_restored_it_takes_the_same_steps_bit_by_bit(name: str) -> None:
    whole = run(optimizers.make(name, 0.01), 40)
    half = optimizers.make(name, 0.01)
    middle = run(half, 25)[-1]
    again = optimizers.make(name, 0.01)
    again.load({key: tensor.clone() for key, tensor in half.state().items()})
    assert torch.equal(run(again, 15, point=middle)[-1].x, whole[-1].x)
    again.reset()
    assert again.state() == {}


def test_adam_is_torchs() -> None:
    x = torch.nn.Parameter(start().x.clone())
    theirs = torch.optim.Adam([x], lr=0.01)
    for _ in range(30):
        x.grad = rosenbrock(x.detach()).gradient
        theirs.step()
    torch.testing.assert_close(run(Adam(0.01), 30)[-1].x, x.detach(), rtol=1e-12, atol=1e-12)


def test_the_steps_of_adam_fall_to_a_fiftieth() -> None:
    """A constant gradient: every step is as long as the learning rate then is."""
    adam, point, lengths = Adam(0.1, fall=10), Point(torch.zeros(1), 0.0, torch.ones(1)), []
    for _ in range(12):
        after = adam.step(lambda x: Point(x, 0.0, torch.ones(1)), point)
        assert after is not None
        lengths.append(float(point.x - after.x))
        point = after
    assert lengths[0] == pytest.approx(0.1, rel=1e-4)
    assert lengths[5] == pytest.approx(0.051, rel=1e-4)
    assert lengths[10:] == pytest.approx([0.002, 0.002], rel=1e-3)
    assert lengths == sorted(lengths, reverse=True)
    adam.reset()  # what is forgotten is the objective, not how far the run is
    again = Adam(0.1, fall=10)
    again.load(adam.state())
    for same in (adam, again):
        after = same.step(lambda x: Point(x, 0.0, torch.ones(1)), point)
        assert after is not None
        assert float(point.x - after.x) == pytest.approx(0.002, rel=1e-3)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(InputError, match=r"one of lbfgs, gd, adam. Got 'sgd'"):
        optimizers.make("sgd", 0.1)
