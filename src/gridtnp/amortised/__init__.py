"""A Gaussian process whose covariance a pretrained network infers from the observations."""
