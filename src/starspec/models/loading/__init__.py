"""From a folder, a hub id or a GGUF file to a model that can be run."""
