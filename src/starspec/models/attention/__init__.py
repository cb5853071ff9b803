"""Attention over the ragged cache: which tokens attend together, to which slots, by which kernel calls."""
