"""A run on disk: its folder, its result, its environment, and the model it trained."""
