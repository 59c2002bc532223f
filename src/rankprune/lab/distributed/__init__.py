"""Several processes in one run: their ranks, how the model is wrapped, and whether their masks agree."""
