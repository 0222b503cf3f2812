"""The sampled part of the default model: biases, pairs and K-way products of the rows of entities.

Read in this order: :mod:`layout` (which entries an entity has), :mod:`state` (what a chain remembers), :mod:`reference` (sums and
draws in plain torch; :mod:`loops` is the same, compiled), :mod:`priors`, :mod:`labels`, :mod:`sampler` (one sweep of all).
"""
