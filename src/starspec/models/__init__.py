"""Running models over the ragged cache: loading, the Hugging Face path, fast modules, quantized drafts."""
