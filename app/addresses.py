"""Checks of network addresses."""

from __future__ import annotations

import ipaddress


def is_this_machine(host: str) -> bool:
    """Whether this is a loopback address, which other machines cannot reach or use."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
