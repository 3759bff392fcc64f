"""Which sensors a client owns, and when they drop out."""
