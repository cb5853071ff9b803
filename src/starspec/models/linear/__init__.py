"""Linear layers in the form that is fastest on this machine: dense, quantized, or both."""
