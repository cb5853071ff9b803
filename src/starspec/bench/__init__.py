"""The measurements of `starspec bench` and `starspec verify`. Each result is saved with its provenance."""
