"""Pure mathematics of speculation: trees, the target's draw, verification, statistics. No model, no I/O."""
