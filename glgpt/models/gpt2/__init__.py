"""All that is GPT-2 (Radford et al. 2019)."""
