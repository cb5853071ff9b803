"""The two ends of the draft link: ZeroMQ between processes, memory inside one."""
