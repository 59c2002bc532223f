"""From a torch module to the engine's graph."""
