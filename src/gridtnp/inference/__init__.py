"""Predictions and joint samples anywhere, in the form of the query or on disk."""
