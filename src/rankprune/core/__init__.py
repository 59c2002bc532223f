"""The pruning core: prunable layers, masks, budgets, plans, and the hooks around an optimizer step."""
