"""Training: design a model for data, fit it by a recipe, resume it, keep a record of the run."""
