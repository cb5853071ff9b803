"""Does this target gain by this draft? Checks, measurements, and what to expect."""
