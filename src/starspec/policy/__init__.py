"""Every decision, in plain Python: no I/O, no sockets, no devices, no clock of its own. `now` is passed in."""
