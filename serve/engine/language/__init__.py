"""Language models: prompts in, tokens out, many answers at once. Slots, steps over them, sampling, text."""
