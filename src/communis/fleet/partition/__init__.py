"""Partitions: which windows belong to which client."""
