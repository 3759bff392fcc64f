"""Robust means: the geometric median and other rules."""
