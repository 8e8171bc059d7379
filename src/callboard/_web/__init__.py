"""Internet addresses, domain names, and the time after which a server may be asked again."""
