"""The rule of the default method, in words and numbers. ``experiments/studies/recipe.py`` is the study that chose it.

A fit is a race and a long run.

1. A tenth of the entries is held out, at least 300 (or a fifth, if that is less) and at most 5,000.
2. **The race**: each runner of the table below is a short chain on the other entries. Its predictions of the held-out entries are
   averages over its samples.
3. **The weights**: the convex combination of all runners that predicts the held-out entries best (log loss of labels, squared
   error of values; even weights are worth 0.3 nats a runner). Runners of different kinds and ranks err differently, and the
   combination is better than the best one.
4. **The long run**: the runners with the largest weights run again, with more sweeps, on *all* entries. Predictions are the
   weighted averages over their samples.

Fewer than 150 entries cannot tell runners apart: the first one, biases alone, is run without a race.

Effort scales the counted work: sweeps, and the number of runners in the long run; ``quick`` has fewer runners in its race.

| effort | race: burn-in, samples from | long run: burn-in, samples from | runners kept at most | entries g learns from |
|---|---|---|---|---|
| quick | 12, 12 sweeps | 20, 30 sweeps | 4 | 1,500 |
| normal | 30, 40 | 60, 90 | 6 | 6,000 |
| thorough | 60, 80 | 200, 300 | all | 10,000 |

Where a sweep is expensive (many entries, many entities), runners whose race would cost more than a quarter of the whole race's
budget are left out, and the sweeps of the others are cut to fit, though never below 10 + 10. The cost of a sweep is counted as
K N (D^2 / 2 + 50) + A D^3 / 2 multiplications (D columns, A entities that occur), 50 K N more with g; the budget is 400,000
million for ``normal``, a tenth of it for ``quick`` and five times as much for ``thorough``, three tenths of it for the race.
Where entities have fewer than 10 entries on average, runners have at most 32 products.

What the runners are for: counts and a process of counts for clicks and other sparse data, where rows of entities learn little;
pairs alone for ratings; products of small and large rank for dense tensors. A floor under the noise keeps large ranks from
explaining the noise of the entries: with it 32 products are the best runner on Alog, and without it nearly the worst.

Samples are kept in single precision, thinned to at most 40 a runner, fewer where all of them would take more than 40 MB.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from gptf_gpytorch.multilinear.priors import PriorName
from gptf_gpytorch.multilinear.state import Ranks

EffortName = Literal["quick", "normal", "thorough"]
Told = Literal["counts", "rows"]
EFFORTS: tuple[EffortName, ...] = get_args(EffortName)


@dataclass(frozen=True)
class Runner:
    """What a chain is made of.

    :param pairs: factors for products of two modes (F).
    :param products: factors for products of all modes (R).
    :param prior: of the rows of a mode.
    :param counts: whether log counts of entities are covariates.
    :param process: what g is told of the entities of an entry: how often they occur, or that and the means of their rows.
        None: g takes no part.
    :param least_noise: the smallest standard deviation of the noise, as a share of that of the values (real values only).
    """

    pairs: int
    products: int
    prior: PriorName = "independent"
    counts: bool = False
    process: Told | None = None
    least_noise: float = 0.0

    @property
    def ranks(self) -> Ranks:
        """The columns of a row."""
        return Ranks(self.pairs, self.products)

    def __str__(self) -> str:
        parts = ["biases"]
        parts += [f"pairs {self.pairs}"] if self.pairs else []
        parts += [f"products {self.products}"] if self.products else []
        parts += ["counts"] if self.counts else []
        parts += [f"Gaussian process of {self.process}"] if self.process else []
        full = ", full prior" if self.prior == "full" else ""
        return " + ".join(parts) + full + (f", noise >= {self.least_noise:g}" if self.least_noise else "")


#: In the order of their cost; the first is the additive model.
RUNNERS: tuple[Runner, ...] = (
    Runner(0, 0),
    Runner(0, 0, counts=True),
    Runner(0, 0, counts=True, process="counts"),
    Runner(3, 3, counts=True),
    Runner(8, 0, counts=True),
    Runner(8, 8),
    Runner(8, 8, prior="full", counts=True),
    Runner(8, 8, prior="full", counts=True, least_noise=0.2),
    Runner(0, 16, prior="full", process="rows"),
    Runner(0, 32, prior="full", least_noise=0.3),
    Runner(8, 32),
    Runner(8, 32, least_noise=0.2),
    Runner(8, 32, prior="full"),
    Runner(0, 64, prior="full"),
)
#: Of ``quick``: one of each kind.
_QUICK = tuple(RUNNERS[place] for place in (0, 2, 3, 4, 6, 7, 9, 11))


@dataclass(frozen=True)
class Schedule:
    """How long a chain is.

    :param burn_in: sweeps before the first sample.
    :param sweeps: in all.
    """

    burn_in: int
    sweeps: int


@dataclass(frozen=True)
class Plan:
    """What a fit will do."""

    runners: tuple[Runner, ...]
    race: tuple[Schedule, ...]  # one a runner
    long: tuple[Schedule, ...]
    most: int  # runners of the long run
    samples: int  # kept of each
    points: int  # inducing points of g
    learnt_on: int  # entries that the kernel of g is learnt on


#: Fewer entries have no race.
LEAST_ENTRIES = 150
_RACE = {"quick": Schedule(12, 24), "normal": Schedule(30, 70), "thorough": Schedule(60, 140)}
_LONG = {"quick": Schedule(20, 50), "normal": Schedule(60, 150), "thorough": Schedule(200, 500)}
_MOST = {"quick": 4, "normal": 6, "thorough": len(RUNNERS)}
_BUDGET = {"quick": 4e10, "normal": 4e11, "thorough": 2e12}
_LEAST = Schedule(10, 20)
_SAMPLES, _BYTES = 40, 40e6
_POINTS = 50
_ENTRIES_OF_AN_ENTITY = 10
_LEARNT_ON = {"quick": 1500, "normal": 6000, "thorough": 10_000}


def held_out_count(entries: int) -> int:
    """How many entries are held out for the race."""
    return min(5000, max(entries // 10, min(300, entries // 5)))


def plan(
    effort: EffortName,
    entries: int,
    entities: int,
    modes: int,
    *,
    binary: bool,
    pairs: int | None = None,
    products: int | None = None,
    counts: bool | None = None,
    process: bool | None = None,
    sweeps: int | None = None,
    samples: int | None = None,
) -> Plan:
    """What a fit will do with so many entries, entities that occur in them, and modes.

    The other arguments are set by hand: they replace what the runners have. Equal runners race once.
    """
    runners = []
    for runner in _QUICK if effort == "quick" else RUNNERS:
        if modes == 2:  # a product of both modes is a pair
            runner = replace(runner, pairs=runner.pairs or runner.products, products=0)
        runner = replace(
            runner,
            pairs=runner.pairs if pairs is None else pairs,
            products=runner.products if products is None else products,
            counts=runner.counts if counts is None else counts,
            least_noise=0.0 if binary else runner.least_noise,
            process=runner.process if process is None else (runner.process or "rows") if process else None,
        )
        if runner not in runners:
            runners.append(runner)
    runners = runners[: 1 if entries < LEAST_ENTRIES else None]
    race_budget = 0.3 * _BUDGET[effort]
    most_products = math.inf if modes * entries >= _ENTRIES_OF_AN_ENTITY * entities or products is not None else 32
    costs = [_cost(runner, entries, entities, modes) for runner in runners]
    affordable = [
        (runner, cost)
        for place, (runner, cost) in enumerate(zip(runners, costs, strict=True))
        if place == 0 or (cost * _LEAST.sweeps <= race_budget / 4 and runner.products <= most_products)
    ]
    runners, costs = [runner for runner, _ in affordable], [cost for _, cost in affordable]
    race = tuple(_fitting(_RACE[effort], cost, race_budget / len(runners)) for cost in costs)
    most = min(_MOST[effort], len(runners))
    if sweeps is None:
        long = tuple(_fitting(_LONG[effort], cost, 0.7 * _BUDGET[effort] / most) for cost in costs)
    else:
        long = (Schedule(sweeps // 3, sweeps),) * len(runners)
    columns = sum(sorted((runner.ranks.columns for runner in runners), reverse=True)[:most])
    kept = max(5, min(_SAMPLES, int(_BYTES / (4 * entities * columns)))) if samples is None else samples
    return Plan(tuple(runners), race, long, most, kept, min(_POINTS, entries), _LEARNT_ON[effort])


def _cost(runner: Runner, entries: int, entities: int, modes: int) -> float:
    """Multiplications of a sweep, about."""
    D = runner.ranks.columns
    return modes * entries * (D * D / 2 + 50 + _POINTS * bool(runner.process)) + entities * D**3 / 2


def _fitting(wanted: Schedule, cost: float, budget: float) -> Schedule:
    """The schedule, shortened to its budget."""
    share = min(1.0, budget / (cost * wanted.sweeps))
    burn_in = max(_LEAST.burn_in, int(share * wanted.burn_in))
    rest = max(_LEAST.sweeps - _LEAST.burn_in, int(share * (wanted.sweeps - wanted.burn_in)))
    return Schedule(burn_in, burn_in + rest)
