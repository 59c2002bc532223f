"""CallbackList processes in one run: who they are, how the model is wrapped, and whether their masks agree."""
