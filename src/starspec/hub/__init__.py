"""The hub: sessions of many targets, grown together, one batched draft forward a layer."""
