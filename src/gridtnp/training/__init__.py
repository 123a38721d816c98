"""Training: fit a model by a recipe, resume it, keep a record of the run."""
