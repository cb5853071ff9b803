"""The numerics probe at load: whether a token's bits can be made independent of what it is batched with."""
