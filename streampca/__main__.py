"""``streampca`` and ``python -m streampca``: the command in its own process."""

from streampca.cli import main as command

if __name__ == "__main__":
    command()
