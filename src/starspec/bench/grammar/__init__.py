"""`starspec bench grammar`: answers to sixty JSON schemas, with every kind of draft and without."""
