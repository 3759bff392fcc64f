"""Dataset sources, one file each. A source is a module here with a settings dataclass of the same
name in CapWords."""
