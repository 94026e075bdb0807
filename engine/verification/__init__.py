"""Whether speculation leaves the output alone on this machine, with these models.

`engine.verification.command.run` is the whole of it.
"""
