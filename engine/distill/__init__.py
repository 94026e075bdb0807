"""Making a draft head for a target: text from the target itself, training against its distributions, evaluation."""
