"""The OpenAI-compatible front of one or several targets."""
