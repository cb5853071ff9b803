"""What clients notice when the hub is killed, stopped or restarted in mid-stream: a real star, real streams."""
