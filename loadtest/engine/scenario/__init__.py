"""What is to be driven, as pure values: arrivals, steps, objectives, searches and stop rules."""
