"""`python -m deduper.cli`: the `deduper` command, where its script is not on PATH."""

from deduper.cli.main import main

main()
