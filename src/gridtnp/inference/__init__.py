"""Inference: predictions and joint samples anywhere, in the form of the question or on disk."""
