"""Commands that list and change topics."""
