"""Pieces that several methods share: training, optimisers, prototypes, diffusion."""
