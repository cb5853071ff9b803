"""The OpenAI-compatible HTTP server in front of one or several targets."""
