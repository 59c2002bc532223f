"""What several methods share: the rank term, second-order statistics, soft masks, thresholds."""
