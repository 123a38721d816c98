"""Files and tables to a `Dataset`: what users bring, understood, cleaned, split and normalised."""
