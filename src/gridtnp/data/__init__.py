"""Files and tables to a `Dataset`: reading, cleaning, features, splits and normalisation."""
