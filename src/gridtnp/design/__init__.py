"""Automatic choices of grid, network and prior for data."""
