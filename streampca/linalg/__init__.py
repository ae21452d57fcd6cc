"""Dense linear algebra on accumulated matrices: eigenproblems, tall matrices, Nystrom approximations, bounds and certificates."""
