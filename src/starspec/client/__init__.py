"""A target's side of its hub link, for our engine and for vLLM. Holds no model."""
