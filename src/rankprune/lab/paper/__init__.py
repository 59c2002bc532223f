"""The paper's tables and figures, regenerated from our own runs. `rankprune paper list`."""
