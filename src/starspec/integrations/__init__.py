"""Other people's servers as targets. Each package speaks the wire and imports nothing of ours that is heavy."""
