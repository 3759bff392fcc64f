"""From recordings to windows."""
