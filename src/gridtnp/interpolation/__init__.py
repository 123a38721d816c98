"""A pretrained model that interpolates observations at once, without training."""
