"""Which addresses mean this machine alone."""

from __future__ import annotations

import ipaddress


def is_this_machine(host: str) -> bool:
    """Whether nobody else can reach this address, or can have come from it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
