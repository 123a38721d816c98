"""A `Dataset` to tasks: which observations are context, which are targets, as tensors."""
