"""A run: configuration, rounds, backends and the folder that they leave."""
