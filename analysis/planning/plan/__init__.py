"""The question of a plan, the fleet that answers it, and the words and files in which the answer is given."""
