"""A run on disk: its folder, its result, what it ran on, and the model it trained."""
