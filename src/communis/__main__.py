"""`python -m communis` is `communis`."""

from communis.cli import main

main()
