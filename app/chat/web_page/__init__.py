"""A chat or a trace as one HTML file, which replays it in a browser without a network."""
