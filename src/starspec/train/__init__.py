"""Training a head: the target answers prompts, its features are read off, and a head learns to foresee them."""
