"""A consensus of clients by diffusion: the spectral block of a matrix, a score network on its core,
and what is made of the two. The mathematics of UMEDA's server."""
