"""`starspec bench batch`: the ways of batching speculation, measured on one engine."""
