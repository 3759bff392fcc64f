"""Faults on purpose: power cuts, kills, damaged files, hostile messages and files."""
