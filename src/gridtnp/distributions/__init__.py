"""Distributions of one variable each: densities, quantiles, moments and scores."""
