"""Dataset sources, one file each. A source is a module of this package with a settings dataclass of
the same name in CapWords."""
