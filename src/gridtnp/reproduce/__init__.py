"""The paper's experiments, to be run again: `python -m gridtnp.reproduce gp`."""
