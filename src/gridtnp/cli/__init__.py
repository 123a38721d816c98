"""The command line `gridtnp`, and the experiments in YAML that it runs."""
