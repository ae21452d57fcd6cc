"""``streampca`` and ``python -m streampca``: the command in a process of its own."""

from streampca.cli import main
from streampca.system.optional import leave_out


def command() -> None:
    """Run the command line of this process and exit with its status."""
    leave_out("sklearn")
    main()


if __name__ == "__main__":
    command()
