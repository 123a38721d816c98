"""The paper's experiments, runnable by anyone: `gridtnp reproduce gp|stations|wind`."""
