"""The spoke: continuous batching, one verifying forward a round, exact output."""
