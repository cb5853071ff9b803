"""`starspec bench tree`: how deep, how wide and how many nodes pay for a pair."""
