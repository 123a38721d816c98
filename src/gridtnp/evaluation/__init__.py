"""Scores with confidence intervals, next to baselines fitted to the same data."""
