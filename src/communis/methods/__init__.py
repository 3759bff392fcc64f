"""Federated methods, one file per paper: Server, Down, Up, Method."""
