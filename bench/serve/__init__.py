"""What a user of a window waits for."""
