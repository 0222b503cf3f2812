"""New entities without retraining: their factors from a few entries, everything else fixed."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import cast

import gpytorch
import numpy as np
import pyarrow as pa
import torch
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.distributed.threads import split
from gptf_gpytorch.errors import DataError, InputError
from gptf_gpytorch.factors import level
from gptf_gpytorch.serving.fold_in_samples import fold_in_samples
from gptf_gpytorch.serving.lookup import check_modes
from gptf_gpytorch.training.saved import FittedModel, PaperModel, SampledModel, build
from gptf_gpytorch.variational.prediction import DRAWS

_CHUNK = 2**14
_STEPS = 200


def fold_in(fitted: FittedModel, entries: TensorEntries) -> FittedModel:
    r"""A model that also knows the entities that entries mention and training did not.

    The factors of the new entities maximise

    .. math:: \sum_j w_j \, \mathrm E_{q(f_j)} \log p(y_j \mid f_j) - \tfrac12 \sum_i \|u_i\|^2

    over the entries j that mention one of them, with the kernel, the inducing points, q(v) and all other factors as
    they are. Nothing is random: L-BFGS starts at 0 and at the mean of a mode's factors, and for each group of new
    entities that share entries the better result is kept. An entity with nothing to learn from has factors 0. Where factors
    have a posterior, those of the new entities maximise their part of the bound: the sum is a mean over draws of all factors,
    and minus the divergence from the prior stands in place of the squares. Biases, where there are such, come with theirs.

    The model that is passed in is not changed. Entries of known entities alone change nothing.

    :param entries: a few entries of new entities, with ids of their own: see ``read_entries(..., unseen="new")``. In a
        mode without ids, indices beyond the model's shape are new.

    Example:
        >>> rows = pa.table({"user": ["eve", "eve"], "ad": ["a02", "a03"], "page": ["p03", "p01"], "value": [1.5, 0.2]})
        >>> wider = fold_in(fitted, read_entries(fitted, rows, unseen="new"))
        >>> wider.shape[0] - fitted.shape[0], "eve" in wider.vocabularies[0]
        (1, True)

    """
    indices, vocabularies, shape = _extended(fitted, entries)
    if shape == fitted.shape:
        return fitted
    bad = (entries.values != 0) & (entries.values != 1)
    if fitted.binary and bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(f"Labels must be 0 or 1. Got {float(entries.values[row]):g} at entry {row}.")
    if isinstance(fitted, SampledModel):
        return fold_in_samples(fitted, indices, entries, vocabularies, shape)
    fitted = cast(PaperModel, fitted)
    fitted.mll.strategy.ensure_fresh()
    job = _NewRows(fitted, indices, entries, shape)
    # One chunk, one core: operations this small would wait for each other's threads, 25 times as long on a busy machine.
    [rows] = split(lambda _: job.solve(), [indices], threaded=True)
    return _with_rows(fitted, rows, job.levels, vocabularies, shape)


def _extended(
    fitted: FittedModel, entries: TensorEntries
) -> tuple[Tensor, tuple[Vocabulary | None, ...], tuple[int, ...]]:
    """Indices `[n, K]`, vocabularies and shape with the new entities behind the known ones."""
    check_modes(fitted, entries)
    if not bool(entries.known.all()):
        raise InputError("Entries to fold in must have ids of their own. Got some that are unknown (row -1).")
    indices, vocabularies, shape = entries.indices.long(), [], []
    for mode, (mine, theirs) in enumerate(zip(fitted.vocabularies, entries.vocabularies, strict=True)):
        name, size = fitted.mode_names[mode], fitted.shape[mode]
        if mine is None and theirs is not None:
            raise InputError(f"Mode {name!r} of the model has indices and no ids. Got {theirs!r}.")
        if mine is None or theirs is None:
            highest = int(indices[:, mode].max()) if len(indices) else -1
            wider = max(size, entries.shape[mode], highest + 1) if mine is None else size
            if highest >= wider:
                raise InputError(f"New entities of mode {name!r} need ids. Got index {highest} of {size}.")
            vocabularies.append(mine)
            shape.append(wider)
            continue
        ids = theirs.ids
        if mine.kind == "string" and theirs.kind == "integer":
            ids = ids.cast(pa.large_string())
        table = mine.encode(ids, unseen="prior")
        used = torch.zeros(len(ids), dtype=torch.bool)
        used[indices[:, mode]] = True
        new = (table < 0) & used
        table[new] = size + torch.arange(int(new.sum()))
        indices = indices.clone()
        indices[:, mode] = table[indices[:, mode]]
        if bool(new.any()):
            mine = Vocabulary.trusted(pa.concat_arrays([mine.ids, ids.filter(pa.array(new.numpy()))]))
        vocabularies.append(mine)
        shape.append(len(mine))
    return indices, tuple(vocabularies), tuple(shape)


class _NewRows:
    """The objective over the new rows of all modes, and its maximum."""

    def __init__(self, fitted: PaperModel, indices: Tensor, entries: TensorEntries, shape: Sequence[int]) -> None:
        factors = fitted.model.factors
        # A row holds the factors and, if they have a posterior, the logs of their deviations; then a bias and the log of its.
        parts = _by_mode(factors.tables, len(factors))
        self.tables = [torch.cat(part, dim=1).detach() for part in parts]
        self.widths = [[table.size(1) for table in part] for part in parts]
        self.bias_variances = [variance.detach() for variance in factors.bias_variances()]
        # New entities have the levels of as many entries as there are of them; levels are never new.
        self.levels = [
            torch.cat([known, level(torch.bincount(column, minlength=size)[len(known) : size])])
            for known, column, size in zip(factors.levels, indices.T, shape, strict=False)
        ]
        indices, after = factors.with_levels(indices, self.levels), (*shape, *factors.shape[len(shape) :])
        self.shape = torch.tensor(factors.shape)
        some = (indices >= self.shape).any(dim=1)
        draws = range(max(DRAWS, factors.draws) if factors.draws else 0)  # few that stay would be fitted
        copies = max(1, len(draws))
        self.noise = factors.noise(indices[some], draws) if draws else None
        self.indices = indices[some].repeat_interleave(copies, 0)
        self.values = fitted.scaling.scaled(entries.values[some]).repeat_interleave(copies)
        weights = torch.ones(len(indices)) if entries.weights is None else entries.weights
        self.weights = weights[some].double().repeat_interleave(copies) / copies
        self.counts = (torch.tensor(after) - self.shape).tolist()
        self.groups = self._groups()
        strategy = fitted.mll.strategy
        q = strategy._variational_distribution
        with torch.no_grad():
            _, self.L = strategy.factor(may_raise_jitter=False)
            self.points = strategy.inducing_points.detach()
            self.mean, self.chol = q.variational_mean.detach(), q.chol_variational_covar.detach()
        # Copies without gradients: the model's own must stay as they are.
        fixed = (fitted.model.covar_module, fitted.model.mean_module, fitted.mll.likelihood)
        self.kernel, self.prior_mean, self.likelihood = (deepcopy(part).requires_grad_(False) for part in fixed)

    # Groups of new entities that share entries

    def _groups(self) -> Tensor:
        """A number for each new entity, the modes one after the other: the same for those that share an entry."""
        offsets = np.cumsum([0, *self.counts])
        total = int(offsets[-1])
        names = torch.where(
            self.indices >= self.shape,
            self.indices - self.shape + torch.tensor(offsets[:-1]),
            total,
        )  # [n, K]: the place among the new entities, or one behind them
        self.places = names
        found = torch.arange(total + 1)
        while True:
            lowest = found[names].amin(dim=1, keepdim=True).expand_as(names)
            after = found.scatter_reduce(0, names.reshape(-1), lowest.reshape(-1), "amin")
            after[total] = total
            if torch.equal(after, found):
                return found[:-1]
            found = after

    # The objective

    def log_likelihoods(self, entries: slice, rows: Sequence[Tensor]) -> Tensor:
        """E log p(y | f) under q(f), `[n]`; indices beyond the known ones are of the new rows."""
        indices, values, parts = self.indices[entries], self.values[entries], []
        for mode, table in enumerate(self.tables):
            column, size = indices[:, mode], int(self.shape[mode])
            part = table[column.clamp(max=size - 1)]
            if len(rows[mode]):
                new = column >= size
                part = torch.where(new[:, None], rows[mode][(column - size).clamp(min=0)], part)
            parts.append(part)
        by_mode = [part.split(widths, -1) for part, widths in zip(parts, self.widths, strict=True)]
        x, *others = (torch.cat(part, dim=-1) for part in zip(*by_mode, strict=True))
        if self.noise is not None:
            x = x + self.noise[entries, : x.size(-1)] * others[0].exp()
        K = self.kernel(self.points, x).to_dense()  # [p, n]
        W = torch.linalg.solve_triangular(self.L, K, upper=False)
        mean = self.prior_mean(x) + self.mean @ W
        variance = self.kernel(x, diag=True) - W.square().sum(0) + (self.chol.mT @ W).square().sum(0)
        if self.bias_variances:
            mean, variance = mean + others[-2].sum(-1), variance + (2.0 * others[-1]).exp().sum(-1)
        q = gpytorch.distributions.MultivariateNormal(mean, DiagLinearOperator(variance.clamp(min=1e-12)))
        expected: Tensor = self.likelihood.expected_log_prob(values, q)
        return expected

    def objective(self, rows: Sequence[Tensor], *, backward: bool) -> Tensor:
        """The objective of each group, `[new entities]` with zeros between; the gradient of minus its sum, if asked."""
        total = self.values.new_zeros(len(self.groups))
        group = self.groups[self.places.amin(dim=1)] if len(self.places) else self.places[:, 0]
        for start in range(0, len(self.values), _CHUNK):
            part = slice(start, start + _CHUNK)
            terms = self.weights[part] * self.log_likelihoods(part, rows)
            if backward:
                (-terms.sum()).backward()
            total.index_add_(0, group[part], terms.detach())
        prior = torch.cat([self._prior(mode, table) for mode, table in enumerate(rows)])
        if backward:
            (-prior.sum()).backward()
        return total.index_add_(0, self.groups, prior.detach())

    def _prior(self, mode: int, rows: Tensor) -> Tensor:
        """The log of the prior of rows without its constant, or minus the divergence from it; `[n]`."""
        u, *others = rows.split(self.widths[mode], dim=1)
        found: Tensor = -0.5 * u.square()
        if self.noise is not None:
            found = found + 0.5 + others[0] - 0.5 * (2.0 * others[0]).exp()
        found = found.sum(dim=1)
        if self.bias_variances:
            bias, log, variance = others[-2][:, 0], others[-1][:, 0], self.bias_variances[mode]
            square = (bias.square() + (2.0 * log).exp()) / variance
            found = found + 0.5 + log - 0.5 * variance.log() - 0.5 * square
        return found

    # Starts and their best

    def solve(self) -> list[Tensor]:
        """The new rows of each mode."""
        first, second = (self._ascend(start) for start in (self._zeros(), self._means()))
        with torch.no_grad():
            better = self.objective(second, backward=False) > self.objective(first, backward=False)
        # The value of a group stands at its first member: every member looks there.
        chosen = better[self.groups].split(self.counts)
        return [torch.where(b[:, None], new, old) for b, new, old in zip(chosen, second, first, strict=True)]

    def _ascend(self, start: Sequence[Tensor]) -> list[Tensor]:
        rows = [table.clone().requires_grad_() for table in start]
        optimizer = torch.optim.LBFGS(
            [table for table in rows if len(table)],
            max_iter=_STEPS,
            tolerance_grad=1e-7,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            optimizer.zero_grad()
            return -float(self.objective(rows, backward=True).sum())

        optimizer.step(closure)
        return [table.detach() for table in rows]

    def _zeros(self) -> list[Tensor]:
        rows = [table.new_zeros(n, table.size(1)) for n, table in zip(self.counts, self.tables, strict=True)]
        for table, variance in zip(rows, self.bias_variances, strict=False):
            table[:, -1] = 0.5 * variance.log()  # the prior, as the deviation 1 of factors is
        return rows

    def _means(self) -> list[Tensor]:
        return [table.mean(0).expand(n, -1).clone() for n, table in zip(self.counts, self.tables, strict=True)]


def _by_mode(tables: tuple[Tensor, ...], modes: int) -> list[tuple[Tensor, ...]]:
    """Of each mode, its tables in their order."""
    return [tables[mode::modes] for mode in range(modes)]


def _with_rows(
    fitted: PaperModel,
    rows: Sequence[Tensor],
    levels: Sequence[Tensor],
    vocabularies: tuple[Vocabulary | None, ...],
    shape: tuple[int, ...],
) -> PaperModel:
    """A model of its own with the rows behind the known ones."""
    mll = build(fitted.config, shape, fitted.mll.num_data)
    state = fitted.mll.state_dict()
    places = {id(table): f"model.{name}" for name, table in fitted.model.named_parameters()}
    factors = fitted.model.factors
    state |= {f"model.factors.levels_{mode}": known for mode, known in enumerate(levels)}
    for tables, new in zip(_by_mode(factors.tables, len(factors)), rows, strict=True):
        for table, columns in zip(tables, new.split([table.size(1) for table in tables], 1), strict=True):
            state[places[id(table)]] = torch.cat([table.detach(), columns])
    mll.load_state_dict(state)
    # q(v) belongs to the factors of the entries that it was computed from, and these have not changed.
    mll.strategy.stamp.fill_(mll.strategy.checksum() if fitted.mll.strategy.stamp else 0)
    mll.model.eval()
    mll.likelihood.eval()
    return replace(fitted, mll=mll, vocabularies=vocabularies)
