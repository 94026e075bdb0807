"""Adapters for kinds of server: the requests they get, and what their streams report about drafts."""
