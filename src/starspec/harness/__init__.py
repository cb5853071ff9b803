"""What measurements share: models on a workbench, decoding loops, prompts, provenance."""
