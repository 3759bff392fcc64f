"""Recordings, and the windows that are cut from them: splits, and a cache on disk."""
