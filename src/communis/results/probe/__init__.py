"""Attacks on what a run reveals: reconstructing windows from gradients, telling training windows
from others, and auditing a privacy claim with canaries."""
