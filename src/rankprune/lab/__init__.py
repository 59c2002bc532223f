"""What reproduces papers: models, data, recipes, training, sweeps, reports and the tables of results."""
