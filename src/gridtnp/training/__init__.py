"""Training: a model designed for the data, fitted by a recipe, with checkpoints and a run."""
