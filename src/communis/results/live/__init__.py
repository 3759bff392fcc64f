"""Runs as they are now, also while another process carries them out."""
