"""The graph between frontend and backend: nodes, fusion, validation."""
