"""The campaign: which measurements it consists of, how they are carried out, and the tables that they fill."""
