"""Commands that check, repair and shrink logs."""
