"""The left-aligned ragged KV cache: rows, lengths, rollback."""
