"""`specchat web`: the app in a browser, drawn by textual-serve."""
