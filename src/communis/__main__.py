"""`python -m communis` is `communis`."""

from communis.cli.main import main

main()
