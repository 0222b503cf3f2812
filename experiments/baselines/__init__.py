"""The methods that ours is compared with, by the name that tables and configurations call them."""

from baselines.base import Fitted, Method, Task
from baselines.inftucker import InfTucker
from baselines.linear import FactorizationMachine, LinearSVM, Logistic
from baselines.multilinear import CP, CP2, HOSVD, NonnegativeCP, SparseCP, Tucker
from baselines.simple import Mean, Popularity
from baselines.subtensors import DinTuckerLite, InfTuckerExLite
from baselines.svgp import SVGPAdam
from baselines.tools import TooLargeError, WrongTaskError

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        Mean,
        Popularity,
        CP,
        CP2,
        NonnegativeCP,
        HOSVD,
        Tucker,
        SparseCP,
        InfTucker,
        DinTuckerLite,
        InfTuckerExLite,
        Logistic,
        LinearSVM,
        FactorizationMachine,
        SVGPAdam,
    )
}

__all__ = ["METHODS", "Fitted", "Method", "Task", "TooLargeError", "WrongTaskError"]
