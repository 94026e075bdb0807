"""Trees that grow step by step, by what their drafter is sure of and what tokens cost."""
