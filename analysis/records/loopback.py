"""Which hosts and URLs are this machine whatever it is called: addresses of loopback, and `localhost`."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """
    >>> [is_loopback(host) for host in ("127.0.0.2", "::ffff:127.0.0.1", "localhost", "127.example.org")]
    [True, True, True, False]
    """
    try:
        found = ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return bool((getattr(found, "ipv4_mapped", None) or found).is_loopback)


def leads_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:  # no URL
        return False
