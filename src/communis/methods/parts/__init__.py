"""Parts that several methods share: local training, optimisers, prototypes, diffusion."""
