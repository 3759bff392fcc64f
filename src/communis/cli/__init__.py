"""The command `communis`."""
