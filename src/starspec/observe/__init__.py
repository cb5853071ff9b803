"""Metrics, the status table and traces."""
