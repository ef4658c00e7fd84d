"""`python -m veredus` is the command `veredus`."""

from veredus.cli.entry import main

if __name__ == "__main__":
    main()
