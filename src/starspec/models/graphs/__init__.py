"""Forwards of fixed shapes, as CUDA graphs."""
