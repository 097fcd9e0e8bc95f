"""Search for a placement: partitioners, their shared parts, and the portfolio that chooses."""
