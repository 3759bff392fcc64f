"""Recordings and what becomes of them: windows, splits, a cache on disk, tensors of one client."""
