"""Runs a star as child processes of one command: starts, watches, restarts and stops them."""
