"""Things that can carry out a plan."""
