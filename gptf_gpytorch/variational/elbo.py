"""The collapsed evidence lower bound, as a GPyTorch marginal log likelihood."""

from contextlib import ExitStack
from typing import Any, get_args

import gpytorch
import torch
from gpytorch.likelihoods import BernoulliLikelihood, GaussianLikelihood
from torch import Tensor

from gptf_gpytorch.distributed import slots
from gptf_gpytorch.distributed.communicator import Communicator, SingleProcess
from gptf_gpytorch.distributed.threads import one_core_each
from gptf_gpytorch.distributed.verdicts import share
from gptf_gpytorch.errors import InputError, NumericalError
from gptf_gpytorch.factors import LatentFactors
from gptf_gpytorch.variational import checks
from gptf_gpytorch.variational.bounds import WhitenedPosterior, through_kernel
from gptf_gpytorch.variational.distributions import DeferredMultivariateNormal
from gptf_gpytorch.variational.evaluation import Evaluation, Solver, default_tolerance
from gptf_gpytorch.variational.fixed_point import Solution
from gptf_gpytorch.variational.paths import PATHS, Path, choose
from gptf_gpytorch.variational.shards import EntryShard
from gptf_gpytorch.variational.strategy import CollapsedVariationalStrategy
from gptf_gpytorch.variational.workspace import Scratch


class CollapsedELBO(gpytorch.mlls.MarginalLogLikelihood):  # type: ignore[misc]
    r"""The tight bound of Theorem 1 (Gaussian likelihood) or Theorem 2 (probit), divided by ``num_data``.

    Called with the output of a model in training mode and *all* of this worker's targets. ``mll(...) * num_data`` is
    :math:`L_1^*` or :math:`L_2^*`, the factors' prior counted once and without its constant; further priors and added
    loss terms that are registered on the model or the likelihood are counted as GPyTorch's ``VariationalELBO`` counts
    them.

    An evaluation in training mode with gradients writes the optimal q(v) (or, with ``forget`` below 1, one on its way
    there) into the model's strategy; ``refresh`` does
    so at the final parameters. With more than one worker both are collectives: all workers call them. What one worker's
    entries or targets break is an error on all workers.

    :param likelihood: a ``GaussianLikelihood``, or a ``ProbitLikelihood`` (any ``BernoulliLikelihood``). It is moved
        to the model's precision and device.
    :param model: an ``ApproximateGP`` whose strategy is a :class:`CollapsedVariationalStrategy`.
    :param num_data: the number of entries of all workers.
    :param communicator: the workers; by default this process alone.
    :param chunk_size: entries that are mapped at a time; memory is O(chunk_size p).
    :param lambda_solver: how the probit bound's lambda is found: ``newton``, or the paper's ``fixed_point``.
    :param lambda_tolerance: the largest :math:`|\partial L_2^* / \partial \eta|_2` that counts as solved; by default
        :math:`10^{-8} \max(1, N / 10^5)`, and :math:`10^{-3}` in single precision.
    :param lambda_passes: the most maps over all entries that one solve may take. Running out is a
        :class:`~gptf_gpytorch.LambdaWarning`.
    :param path: how entries are mapped; ``auto`` chooses, and ``model.variational_strategy.path`` says what was chosen.
    :param compiled: whether the inner loops are compiled (the extra ``fast``): if None, wherever they can be.

    Example:
        >>> model = GPTF(shape=(20, 10), rank=2, num_inducing=10)
        >>> indices, y = torch.randint(10, (100, 2)), torch.randn(100)
        >>> mll = CollapsedELBO(gpytorch.likelihoods.GaussianLikelihood(), model, num_data=100)
        >>> loss = -mll(model(indices), y)
        >>> loss.backward()
        >>> sorted(mll.terms)
        ['factor_prior', 'fit', 'log_det', 'normaliser', 'trace']

    """

    def __init__(
        self,
        likelihood: GaussianLikelihood | BernoulliLikelihood,
        model: gpytorch.models.ApproximateGP,
        num_data: int,
        communicator: Communicator | None = None,
        *,
        chunk_size: int = 3000,
        lambda_solver: Solver = "newton",
        lambda_tolerance: float | None = None,
        lambda_passes: int = 1000,
        path: Path = "auto",
        compiled: bool | None = None,
    ) -> None:
        super().__init__(likelihood, model)
        strategy = getattr(model, "variational_strategy", None)
        if not isinstance(strategy, CollapsedVariationalStrategy):
            raise InputError(
                "The model's variational_strategy must be a CollapsedVariationalStrategy. "
                f"Got {type(strategy).__name__}."
            )
        if not isinstance(likelihood, GaussianLikelihood | BernoulliLikelihood):
            raise InputError(
                "The likelihood must be a GaussianLikelihood or a ProbitLikelihood: these have collapsed bounds. "
                f"Got {type(likelihood).__name__}. For others, train the SVGP that to_svgp() returns."
            )
        num_data = checks.positive_integer("num_data, the number of entries of all workers,", num_data)
        p = strategy.inducing_points.size(-2)
        if p > num_data:
            raise InputError(
                "There must be at most as many inducing points as entries. "
                f"Got {p} inducing points for {num_data} entries: use num_inducing={num_data} or fewer."
            )
        chunk_size = checks.positive_integer("chunk_size", chunk_size)
        lambda_passes = checks.positive_integer("lambda_passes", lambda_passes)
        if lambda_tolerance is not None and not lambda_tolerance > 0:
            raise InputError(f"lambda_tolerance must be greater than 0. Got {lambda_tolerance!r}.")
        if lambda_solver not in get_args(Solver):
            raise InputError(f"lambda_solver must be 'newton' or 'fixed_point'. Got {lambda_solver!r}.")
        if path not in PATHS:
            raise InputError(f"path must be one of {', '.join(PATHS)}. Got {path!r}.")
        self.path, self.compiled = path, compiled
        likelihood.to(device=strategy.inducing_points.device, dtype=strategy.inducing_points.dtype)
        self.num_data = num_data
        self.communicator = SingleProcess() if communicator is None else communicator
        self.chunk_size = chunk_size
        self.lambda_solver, self.lambda_tolerance, self.lambda_passes = lambda_solver, lambda_tolerance, lambda_passes
        #: Which draws of factors an evaluation takes, where they have a posterior: another number gives others.
        self.turn = 0
        #: What the factors' prior, or the divergence of their posterior from it, is weighed with; other than 1 is no bound.
        self.prior_weight = 1.0
        #: How many of the ``num_data`` entries the next evaluation takes, weighed to stand for all; None for all.
        self.sample: int | None = None
        #: How much of q(v) an evaluation of a sample forgets, to move to where the sample wants it; 1 collapses its bound.
        self.forget = 1.0
        #: The named terms of the last bound, not divided by ``num_data``.
        self.terms: dict[str, Tensor] = {}
        #: How the last lambda was found; None for the Gaussian bound.
        self.solution: Solution | None = None
        # The entries of the last training evaluation, for refresh(). Not part of the module's state.
        self._held: tuple[EntryShard, torch.Size] | None = None
        self._scratch = Scratch()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_scratch": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _scratch=Scratch())

    @property
    def strategy(self) -> CollapsedVariationalStrategy:
        """The model's variational strategy."""
        strategy: CollapsedVariationalStrategy = self.model.variational_strategy
        return strategy

    def forward(self, output: DeferredMultivariateNormal, target: Tensor, *, weights: Tensor | None = None) -> Tensor:
        """The bound at the present parameters, divided by ``num_data``, `[...]`.

        :param output: what the model returned in training mode.
        :param target: the values `[..., n]` of this worker's entries; in {0, 1} for probit.
        :param weights: non-negative weights `[..., n]`; an entry of weight 2 counts as the entry twice.
        """
        write = self.model.training and torch.is_grad_enabled()
        refused = None
        with one_core_each(), ExitStack() as asking:
            try:
                shard, batch_shape = self.check(output, target, weights), output.batch_shape
            except InputError as error:
                if self.communicator.size == 1:
                    raise
                # The others are on their way into the first collective: come without entries, and say so there.
                refused, (shard, batch_shape) = error, self._nothing()
                asking.enter_context(self.communicator.asking(lambda: slots.REFUSED))
            try:
                return self._evaluate(shard, batch_shape, write=write) / self.num_data
            except slots.StopRequestedError as asked:
                if asked.wish != slots.REFUSED:
                    raise
                raise share(self.communicator, refused, asked.worker) from refused

    def refresh(self) -> None:
        """Compute q(v) at the present parameters from the entries of the last training evaluation. A collective."""
        if self._held is None:
            raise InputError(
                "refresh() needs the entries of a training evaluation with gradients, whose inputs are data and not made "
                "by a network. Got none: evaluate first."
            )
        with torch.no_grad():
            self._evaluate(*self._held, write=True)

    def check(self, output: DeferredMultivariateNormal, target: Tensor, weights: Tensor | None = None) -> EntryShard:
        """The entries of an evaluation, or an error that states the rule and what came, before any computation."""
        if not isinstance(output, DeferredMultivariateNormal):
            raise InputError(
                "CollapsedELBO takes the output of its model in training mode. "
                f"Got a {type(output).__name__}; call model.train() first."
            )
        if output.strategy is not self.strategy:
            raise InputError("CollapsedELBO takes the output of its own model. Got another model's.")
        inputs, n, points = output.inputs, output.inputs.size(-2), self.strategy.inducing_points
        binary = isinstance(self.likelihood, BernoulliLikelihood)
        y = checks.targets(target, n, output.batch_shape, binary=binary)
        v = checks.weights(weights, n, output.batch_shape)
        if output.factors is None:
            checks.plain_inputs(inputs, points.size(-1))
            if inputs.requires_grad and self.communicator.size > 1:
                raise InputError("Inputs that need a gradient are for one process. Got them with more workers.")
        checks.precision(points.dtype)
        return self._shard(inputs, y, v, output.factors)

    def _shard(self, inputs: Tensor, y: Tensor, v: Tensor | None, factors: LatentFactors | None) -> EntryShard:
        points, draws = self.strategy.inducing_points, range(0 if factors is None else factors.draws)
        # For labels the mean of log Phi over draws is a tighter bound than that with the variance of biases.
        draws_biases = bool(draws) and isinstance(self.likelihood, BernoulliLikelihood)
        where = (self.chunk_size, points.device, points.dtype)
        total = self.num_data if self.sample is None else self.sample
        return EntryShard(inputs, y, v, factors, *where, draws, self.turn, draws_biases, total)

    def _nothing(self) -> tuple[EntryShard, torch.Size]:
        """No entries, and the batch shape of the model."""
        points, factors = self.strategy.inducing_points, getattr(self.model, "factors", None)
        factors = factors if isinstance(factors, LatentFactors) else None
        width = points.size(-1) if factors is None else len(factors.shape)
        inputs = torch.zeros(0, width, dtype=points.dtype if factors is None else torch.long)
        shard = self._shard(inputs, torch.zeros(0), None, factors)
        return shard, self.strategy.defer(inputs, factors).batch_shape

    def _evaluate(self, shard: EntryShard, batch_shape: torch.Size, *, write: bool) -> Tensor:
        """The bound, undivided, with its terms kept in ``self.terms``; q(v) is written if ``write``."""
        K_BB, L = self.strategy.factor(may_raise_jitter=write)
        points = self.strategy.inducing_points
        maps = choose(
            self.path,
            self.model,
            points,
            L,
            batch_shape,
            shard,
            self._scratch,
            compiled=self.compiled,
        )
        self.strategy.path = maps.path
        forget = 1.0 if self.sample is None else self.forget
        terms, posterior = self._bound(Evaluation(shard, maps, self.communicator, batch_shape, self.strategy.q, forget))
        factors = [module for module in self.model.modules() if isinstance(module, LatentFactors)]
        if factors:
            terms["factor_prior"] = self.prior_weight * torch.stack([module.log_prior() for module in factors]).sum()
        priors = [prior.log_prob(closure(module)).sum() for _, module, prior, closure, _ in self.named_priors()]
        if priors:
            terms["hyper_prior"] = torch.stack(priors).sum()
        added = [term.loss() for term in self.model.added_loss_terms()]
        if added:
            terms["added_loss"] = -self.num_data * torch.stack(added).sum()
        bound = sum(terms.values(), start=L.new_zeros(batch_shape))
        if not bool(bound.isfinite().all()):
            bad = [name for name, term in terms.items() if not bool(term.isfinite().all())]
            raise NumericalError(
                f"The bound must be finite. Got NaN or infinity in {', '.join(bad) or 'the sum of its terms'}: a parameter has "
                "left its range; take a smaller step, or start again from the last good state."
            )
        self.terms = {name: term.detach() for name, term in terms.items()}
        if write:
            # Inputs that a network made are its output at old parameters, and a part is not all that q(v) remembers: nothing to
            # refresh from.
            self._held = None if shard.inputs.requires_grad or forget < 1.0 else (shard, batch_shape)
            alone = self.communicator.size == 1 and self._held is not None
            self.strategy.write(posterior, self.likelihood, self.refresh if alone else None)
        return through_kernel(bound, K_BB, L, posterior.inner)

    def _bound(self, evaluation: Evaluation) -> tuple[dict[str, Tensor], WhitenedPosterior]:
        """The terms of the likelihood's bound, and q(v)."""
        if isinstance(self.likelihood, GaussianLikelihood):
            self.solution = None
            gaussian, posterior = evaluation.gaussian(self.likelihood.noise.squeeze(-1).reciprocal())
            return gaussian._asdict(), posterior
        tolerance = self.lambda_tolerance
        if tolerance is None:
            tolerance = default_tolerance(self.num_data, self.strategy.inducing_points.dtype)
        probit, posterior, self.solution = evaluation.probit(self.lambda_solver, tolerance, self.lambda_passes)
        return probit._asdict(), posterior
