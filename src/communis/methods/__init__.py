"""Federated methods, one file per paper. Each file defines the server's state (`Server`), the
messages (`Down`, `Up`), a client's private state where one is needed, and the method."""
