"""Synthetic models: no weights, a known acceptance rate, and forwards that take a modelled time."""
