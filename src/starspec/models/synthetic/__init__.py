"""Synthetic accelerators: modelled time, tokens from a hash, no weights."""
