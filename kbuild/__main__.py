"""`python -m kbuild` is the `kbuild` command."""

from kbuild.cli import main

if __name__ == "__main__":
    main()
