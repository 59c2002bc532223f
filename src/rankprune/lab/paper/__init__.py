"""The paper, regenerated: its tables and figures beside our own runs. `rankprune paper list`."""
