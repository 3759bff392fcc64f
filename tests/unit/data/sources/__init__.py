"""The dataset sources, each on files of its official format."""
