"""The command line `gridtnp`, and its experiments in YAML."""
