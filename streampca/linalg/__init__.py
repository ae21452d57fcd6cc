"""Dense linear algebra on accumulated matrices: eigenproblems, tall matrices, Nyström approximations and error bounds."""
