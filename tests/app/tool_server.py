"""An MCP server with tools that work, hang, end the server, flood, and send what a terminal acts on."""

import os
import sys
import time

from mcp.server.mcpserver import MCPServer

server = MCPServer("weather")


@server.tool()
def weather(city: str) -> str:
    """Weather of a city."""
    return f"18 °C in {city}"


@server.tool()
def hang() -> str:
    """Never returns in time."""
    time.sleep(600)
    return ""


@server.tool()
def crash() -> str:
    """Ends the server."""
    print("\x1b[2Jthis is not JSON", flush=True)
    os._exit(3)


@server.tool(structured_output=False)
def flood(characters: int) -> str:
    """Returns very much."""
    return "x" * characters


@server.tool(name="odd.name")
def odd() -> str:
    """Clears the \x1b[2Jscreen."""
    return "\x1b[2J\x07safe\x9b"


@server.tool()
def fails() -> str:
    """Raises."""
    raise ValueError("no such city")


@server.tool(structured_output=False)
def forecast(city: str, days: int, hourly: bool, stations: list[str], note: str) -> str:  # noqa: ARG001
    """Weather of the next days in a city, by the stations that are named, or by all of them."""
    skies = "clear in the morning, clouds from the sea in the afternoon", "rain", "sun all day with little wind"
    return "\n".join(f"day {day}: {17 + day % 5} °C in {city}, {skies[day % 3]}" for day in range(1, days + 1))


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
