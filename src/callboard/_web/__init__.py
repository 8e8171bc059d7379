"""Internet addresses, domain names, and the time after which a client may repeat a request."""
