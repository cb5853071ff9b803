"""EAGLE heads: reading and writing their checkpoints, and running them."""
