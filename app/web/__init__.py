"""`specchat web`: the app in a browser, with textual-serve."""
