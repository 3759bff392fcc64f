"""The seam to the world: who carries work to the clients and brings back their answers."""
