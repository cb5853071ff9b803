"""`starspec bench relaxed`: speed, acceptance length and accuracy over tau, as the ablation that DSD describes."""
