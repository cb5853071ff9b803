"""What the next token is: sampling parameters, filters, noise and the draw. Pure."""
