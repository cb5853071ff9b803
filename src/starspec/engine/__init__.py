"""The target server: continuous batching, one verifying forward a round, exact output."""
