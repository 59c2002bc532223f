"""What several methods share: second-order statistics, rank work, rounds, thresholds."""
