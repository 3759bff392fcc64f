"""Getting datasets: downloading where the owner allows it, unpacking safely, saying how else."""

from communis.data.fetch.bring import Outcome, adopt, fetch, instructions

__all__ = ["Outcome", "adopt", "fetch", "instructions"]
