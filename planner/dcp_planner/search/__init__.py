"""Search for a placement: partitioners, what they share, and the portfolio that picks."""
