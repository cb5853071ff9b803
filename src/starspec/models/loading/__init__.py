"""From a model's name to a runner: locating, checking and reading checkpoints and tokenizers."""
