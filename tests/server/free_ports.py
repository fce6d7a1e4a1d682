"""Ports for servers that have to be told one."""

import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, and no two calls of the system's give again so soon."""
    listeners = [socket.socket() for _ in range(count)]
    try:
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in listeners]
    finally:
        for listener in listeners:
            listener.close()
