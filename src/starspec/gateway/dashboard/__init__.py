"""The dashboard: its page, and the two routes that tell it how the star is."""
