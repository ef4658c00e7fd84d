"""`python -m veredus` is the command `veredus`."""

from veredus.cli.main import main

if __name__ == "__main__":
    main()
