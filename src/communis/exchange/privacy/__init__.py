"""Privacy: what a run promises its clients, the noise that keeps it, and what that costs."""
