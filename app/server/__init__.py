"""`specchat serve`: the engine behind the OpenAI protocol. Imported by that command alone."""
