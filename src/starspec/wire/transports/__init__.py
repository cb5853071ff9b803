"""The ends of the two links. Draft link: ZeroMQ between processes, memory within one. Serving link: ZeroMQ."""
