"""Pretraining of the model that interpolates anything: a prior over fields, and held-out tasks."""
