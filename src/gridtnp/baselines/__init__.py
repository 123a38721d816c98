"""Baselines to compare with: interpolation, kriging, regression, boosting, climatology."""
