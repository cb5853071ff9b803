"""A target that is cut into stages: what each stage does, and the coordinator that launches windows through them."""
