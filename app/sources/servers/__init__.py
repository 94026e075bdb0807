"""The kinds of server that can stand in for an engine: what each is asked, and what its stream says of a draft."""
