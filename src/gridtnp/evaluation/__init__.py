"""Evaluation: scores with intervals, beside baselines that learned from the same data."""
