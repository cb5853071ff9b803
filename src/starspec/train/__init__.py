"""Training an EAGLE head: the target answers prompts, its features are saved, and a head learns from them."""
