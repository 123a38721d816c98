"""`python -m gridtnp` is the command `gridtnp`."""

from gridtnp.cli.commands import main

if __name__ == "__main__":
    main()
