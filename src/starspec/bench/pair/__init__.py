"""What a target and a draft gain together, beside transformers with the same pair, in one run on one machine."""
