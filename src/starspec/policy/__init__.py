"""Every decision, as pure Python over what is known: no sockets, no devices, no sleeping."""
