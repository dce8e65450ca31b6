"""Entry point of `python -m paceline`, the same as the command `paceline`."""

from paceline.cli.app import main

if __name__ == "__main__":
    main()
