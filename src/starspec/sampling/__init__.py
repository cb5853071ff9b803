"""How the next token is chosen: sampling parameters, filters, noise and the draw. No model, no I/O."""
