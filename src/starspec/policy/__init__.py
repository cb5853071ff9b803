"""Decisions that need no I/O, in plain Python: no sockets, no devices, no clock of their own."""
