"""Documents that processes share, whichever server keeps them."""
