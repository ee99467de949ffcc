"""What keeps a load process on time: an exact alarm, precedence for a core, greenlets at hand, and a look at stalls."""
