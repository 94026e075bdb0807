"""`specchat serve`: an OpenAI-compatible server. Imported by that command only."""
