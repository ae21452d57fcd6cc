"""``streampca`` and ``python -m streampca``: the command in a process of its own."""

from streampca.cli import main as command

if __name__ == "__main__":
    command()
