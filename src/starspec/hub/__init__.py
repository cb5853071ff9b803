"""The hub: sequences of many targets, grown together, one batched draft forward a draft step."""
