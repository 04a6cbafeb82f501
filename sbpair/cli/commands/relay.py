"""`sbpair relay`: its subcommands."""

from sbpair.cli.commands.relay_listen import listen
from sbpair.cli.commands.relay_provision import provision
from sbpair.cli.commands.relay_send import send
from sbpair.cli.commands.relay_status import status


def group() -> None:
    """Serve and call a service behind two endpoints of Azure Relay.

    A relay is a hybrid connection in each of two namespaces: [relays.NAME] in the configuration file.

    Examples:
      sbpair relay listen service --to http://localhost:8080
      sbpair relay send service /orders?id=7
      sbpair relay status

    See also: sbpair help relay
    """


SUBCOMMANDS = {"listen": listen, "send": send, "status": status, "provision": provision}
