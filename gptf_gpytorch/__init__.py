"""Nonlinear tensor factorization with Gaussian processes, as a GPyTorch plugin.

A tensor entry at (i_1, ..., i_K) is a Gaussian process function of the concatenated latent factors of its K entities::

    model = GPTF(shape=(203, 203, 200), rank=3, num_inducing=100)
    likelihood = ProbitLikelihood()
    mll = CollapsedELBO(likelihood, model, num_data=len(y))
    initialize(mll, indices, y)
    loss = -mll(model(indices), y)
    loss.backward()                              # any torch optimiser takes it from here
    mll.refresh()                                # q(v) at the final parameters
    probability = likelihood(model.eval()(indices)).probs

Reading order is import order: ``errors``; ``distributed`` (workers, the differentiable sum over them); ``data``
(entries, vocabularies, readers, sampling, splits); ``factors``, ``kernels``, ``likelihoods``; ``variational``
(statistics, bounds, lambda, strategy, ELBO); ``models``; ``initialization``; ``tracking``; ``training`` (``fit``,
optimisers, checkpoints); ``serving`` (predictions, recommendations, new entities);
``reporting`` (figures, MLflow); ``commands`` and ``cli``.

What is public is in ``__init__.pyi``, and imported when it is first used: ``tracking.sender`` runs beside training, and does
without torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
