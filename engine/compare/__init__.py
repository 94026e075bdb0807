"""Two set-ups on the same prompt: what each took, and what the difference was. All figures come from records."""
