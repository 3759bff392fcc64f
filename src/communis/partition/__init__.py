"""Samples -> clients."""
