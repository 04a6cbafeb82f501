"""Kombu's transport azureservicebus:// with a connection string: its own URL names a namespace of Azure only."""

import os

from kombu.transport import azureservicebus


class Channel(azureservicebus.Channel):
    def _try_parse_connection_string(self) -> None:
        self._connection_string = os.environ["CONNECTION_STRING"]


class Transport(azureservicebus.Transport):
    Channel = Channel
