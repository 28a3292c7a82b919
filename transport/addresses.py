"""Hosts and ports."""

from __future__ import annotations

import ipaddress
import os
import socket


def is_wildcard(host: str) -> bool:
    """Whether the address means all addresses of this machine; a client cannot connect to such an address."""
    return ipaddress.ip_address(host).is_unspecified


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address. False for a host name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen on this port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # ignore closed connections of an earlier server (TIME_WAIT)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)[0][4])
        except OSError:
            return False
    return True


def in_url(host: str) -> str:
    """The host as written in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host
