"""Attention over the ragged cache."""
