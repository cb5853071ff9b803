"""`python -m starspec`: the same as the command `starspec`."""

from starspec.cli import main

if __name__ == "__main__":
    main()
