"""Your own files: the manifest of a folder, the reader of its files, and a first guess of the
manifest."""
