"""What people look at: the report, the plan and the index of all runs. Pages judge nothing; they show what was
found.
"""
