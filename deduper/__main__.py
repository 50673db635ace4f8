"""`python -m deduper` is `deduper`."""

from deduper.cli.main import main

if __name__ == "__main__":
    main()
