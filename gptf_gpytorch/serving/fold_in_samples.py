"""New entities of a sampled model: a draw of their rows, given each sample of all else."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gptf_gpytorch.data.entries import TensorEntries
from gptf_gpytorch.data.vocabulary import Vocabulary
from gptf_gpytorch.multilinear import labels, reference
from gptf_gpytorch.multilinear.covariates import Counts
from gptf_gpytorch.multilinear.layout import Entities, Grouped
from gptf_gpytorch.training.chains import Sampled
from gptf_gpytorch.training.sampled_model import SampledModel

# Sweeps over the new rows of each sample; the values behind labels need some to settle.
_SWEEPS, _SWEEPS_OF_LABELS = 3, 10


def fold_in_samples(
    fitted: SampledModel,
    indices: Tensor,
    entries: TensorEntries,
    vocabularies: tuple[Vocabulary | None, ...],
    shape: tuple[int, ...],
) -> SampledModel:
    """A model with rows of the new entities, which are those of the entries beyond the model's shape.

    :param indices: of the entries `[n, K]`, the new entities behind the known ones.
    """
    new = [
        torch.unique(column[column >= size].long())
        for column, size in zip(indices.T, fitted.entities.shape, strict=True)
    ]
    wider = Entities(tuple(torch.cat([ids, more]) for ids, more in zip(fitted.entities.ids, new, strict=True)), shape)
    rows = wider.rows(indices)
    some = (indices >= torch.tensor(fitted.entities.shape)).any(dim=1)
    counts = _wider_counts(fitted, wider, new, rows)
    weights = None if entries.weights is None else entries.weights[some].double()
    values = fitted.scaling.scaled(entries.values[some])
    chains = tuple(
        _Wider(fitted, chain, wider, counts, seed).folded(rows[some], values, weights)
        for seed, chain in enumerate(fitted.chains)
    )
    return replace(fitted, entities=wider, counts=counts, chains=chains, vocabularies=vocabularies)


def _wider_counts(fitted: SampledModel, wider: Entities, new: list[Tensor], rows: Tensor) -> Counts:
    """Counts of the known entities as they were, and of the new ones in the entries that are folded in."""
    count = torch.bincount(rows[rows >= 0].long(), minlength=wider.offsets[-1]).double()
    logs, without = [], []
    for mode, more in enumerate(new):
        old = slice(*fitted.entities.offsets[mode : mode + 2])
        end = wider.offsets[mode + 1]
        fresh = count[end - len(more) : end]
        logs += [fitted.counts.logs[old], fresh.log1p()]
        without += [fitted.counts.logs_without[old], fresh.clamp(min=1.0).log()]
    return replace(fitted.counts, logs=torch.cat(logs), logs_without=torch.cat(without))


class _Wider:
    """One chain with room for new rows."""

    def __init__(self, fitted: SampledModel, chain: Sampled, wider: Entities, counts: Counts, seed: int) -> None:
        self.fitted, self.chain, self.wider, self.counts = fitted, chain, wider, counts
        self.generator = np.random.default_rng([fitted.config.seed, seed])

    def folded(self, rows: Tensor, values: Tensor, weights: Tensor | None) -> Sampled:
        """The chain with rows of the new entities, one draw for each sample."""
        chain, samples = self.chain, self.chain.samples
        tables = self._stacked(samples.tensors["rows"], samples.tensors["means"])
        known = replace(samples, entities=self.wider, counts=None if samples.counts is None else self.counts)
        process = chain.process
        if process is not None:  # g is told of a new entity by zeros, the mean of all others
            told = process.rows
            process = replace(
                process, rows=self._stacked(told[None], told.new_zeros(1, len(self.wider.ids), told.size(1)))[0]
            )
        wide = replace(chain, process=process, samples=replace(known, tensors={**samples.tensors, "rows": tables}))
        features, _ = wide.features(rows)
        for place in range(len(samples)):
            part = {name: tensor[place].double() for name, tensor in wide.samples.tensors.items()}
            rest = known.covariates(rows) @ part["coefficients"][1:] + part["coefficients"][0]
            rest = rest if features is None else rest + features @ part["process"]
            tables[place] = self._drawn(part, rows, values, weights, rest).float()
        return wide

    def _stacked(self, rows: Tensor, means: Tensor) -> Tensor:
        """`[S, A, D]`: the known rows `[S, A', D]`, and the mean `[S, K, D]` of its mode for every new one."""
        parts = []
        for mode in range(len(self.wider.ids)):
            old = slice(*self.fitted.entities.offsets[mode : mode + 2])
            more = len(self.wider.ids[mode]) - len(self.fitted.entities.ids[mode])
            parts += [rows[:, old], means[:, mode : mode + 1].expand(-1, more, -1)]
        return torch.cat(parts, dim=1).contiguous()

    def _drawn(
        self, part: dict[str, Tensor], rows: Tensor, values: Tensor, weights: Tensor | None, rest: Tensor
    ) -> Tensor:
        """A table whose new rows are drawn given all else, mode by mode."""
        table, pairs, beta = part["rows"].clone(), self.chain.runner.pairs, float(part["noise_precision"])
        for _ in range(_SWEEPS_OF_LABELS if self.fitted.binary else _SWEEPS):
            f = rest + reference.values(rows, table, pairs)
            z = values
            if self.fitted.binary:
                z = labels.latent_values(2.0 * values - 1.0, f, torch.from_numpy(self.generator.random(len(f))))
            for mode in range(rows.size(1)):
                end = self.wider.offsets[mode + 1]
                first = end - (len(self.wider.ids[mode]) - len(self.fitted.entities.ids[mode]))
                mine = ((rows[:, mode] >= first) & (rows[:, mode] < end)).nonzero()[:, 0]
                if not len(mine):
                    continue
                residual = (z - rest - reference.values(rows, table, pairs))[mine]
                grouped = Grouped.by_mode(rows[mine], mode, first, end)
                o = None if weights is None else weights[mine]
                S, t = reference.statistics(grouped, table, mode, pairs, o, residual)
                noise = torch.from_numpy(self.generator.standard_normal((end - first, table.size(1))))
                T, m = part["precisions"][mode], part["means"][mode]
                table[first:end] = reference.draw(S, t, beta, T, m, noise, table[first:end])
        return table
