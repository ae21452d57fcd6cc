"""``python -m streampca``: the command."""

from streampca.cli import main

if __name__ == "__main__":
    main()
