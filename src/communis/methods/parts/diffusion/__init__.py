"""A consensus of clients by diffusion: the spectral block of a matrix, a score network on the cores
in this block, and the server's aggregation with both. This is the mathematics of UMEDA's server."""
