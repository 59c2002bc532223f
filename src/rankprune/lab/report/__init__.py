"""A page, a live page and figures from the folders of runs."""
