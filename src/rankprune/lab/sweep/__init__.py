"""Many runs: from a sweep file to recipes, and from recipes to results."""
