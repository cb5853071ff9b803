"""KV caches: the ragged one with its rollback, padded rectangles, shared prefixes; and stored features."""
