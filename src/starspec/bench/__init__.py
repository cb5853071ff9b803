"""Benchmarks: code with provenance."""
