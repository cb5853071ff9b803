"""Running models over the ragged cache: loading, runners, attention, packed linears, EAGLE heads, synthetic models."""
