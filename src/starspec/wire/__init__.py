"""What crosses between processes: typed messages, their codec, the sans-IO session, and the transports."""
