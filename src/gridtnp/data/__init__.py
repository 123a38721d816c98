"""Sources to a `Dataset`: features, splits, normalisation and places."""
