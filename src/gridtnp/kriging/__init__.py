"""Gaussian-process regression, which networks correct: posterior, and how it is fitted."""
