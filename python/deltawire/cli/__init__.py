"""The ``deltawire`` command.

``entry`` parses the command line, runs a verb and turns errors into messages and exit
statuses; each verb has a module (``diff``, ``apply`` with ``verify``, ``inspect``, ``board``
with publish, pull and log, ``demo``); ``output`` and ``text`` are what they print with.
"""

from .entry import main

__all__ = ["main"]
