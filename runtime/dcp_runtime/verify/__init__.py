"""Compare what ranks computed with dense attention in float64."""
