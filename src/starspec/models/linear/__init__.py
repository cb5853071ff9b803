"""Linear layers over packed and quantized weights."""
