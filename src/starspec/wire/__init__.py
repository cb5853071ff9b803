"""The protocol between processes: messages, codec, state machines without I/O, keys and transports."""
