"""Synthetic tasks from Gaussian processes, with their exact posterior."""
