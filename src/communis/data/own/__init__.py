"""Folders of somebody's own: the manifest, what it makes of the files, and a first guess at it."""
