"""Other servers as targets. Each package is a client of the draft link, and imports no models and no hub code."""
