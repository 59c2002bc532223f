"""From a torch module to the engine's graph: torch.export, capture of ATen operators, segments and islands."""
