"""Reproductions of the paper's experiments: `python -m gridtnp.reproduce gp`."""
